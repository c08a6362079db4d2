#include <fairshard/comm/broadcast_all.h>
#include <fairshard/comm/collectives.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>

namespace fairshard::comm {
namespace {

constexpr size_t kSmallBytes = size_t{1} << 18;

/// Tensors that travel in one message.
class Parcel {
 public:
  explicit Parcel(const at::Tensor& first)
      : tensors_{first}, is_open_(first.nbytes() <= kSmallBytes) {}

  bool takes(const at::Tensor& tensor) const {
    return is_open_ && tensor.nbytes() <= kSmallBytes &&
           tensor.options().type_equal(tensors_[0].options()) &&
           tensor.device() == tensors_[0].device();
  }
  void add(const at::Tensor& tensor) { tensors_.push_back(tensor); }

  Work start(const Group& group, int root, const std::string& label) {
    message_ = packed();
    return broadcast(group, message_, root, label);
  }

  void unpack() const {
    int64_t begin = 0;
    for (const auto& tensor : tensors_) {
      if (tensor.const_data_ptr() != message_.const_data_ptr()) {
        tensor.copy_(message_.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      }
      begin += tensor.numel();
    }
  }

 private:
  at::Tensor packed() const {
    std::vector<at::Tensor> flat;
    flat.reserve(tensors_.size());
    for (const auto& tensor : tensors_) {
      flat.push_back(tensor.reshape(-1));
    }
    return flat.size() == 1 ? flat[0] : at::cat(flat);
  }

  std::vector<at::Tensor> tensors_;
  bool is_open_;
  at::Tensor message_;
};

}  // namespace

void broadcast_all(const Group& group, const std::vector<at::Tensor>& tensors, int root,
                   const std::string& label) {
  const at::NoGradGuard no_grad;
  std::vector<Parcel> parcels;
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) {
      continue;
    }
    // Not detach(): autograd may have saved a buffer, and would take this for a change of it.
    const at::Tensor values = tensor.variable_data();
    const auto found = std::find_if(parcels.begin(), parcels.end(),
                                    [&](const Parcel& parcel) { return parcel.takes(values); });
    if (found == parcels.end()) {
      parcels.emplace_back(values);
    } else {
      found->add(values);
    }
  }
  std::vector<Work> works;
  works.reserve(parcels.size());
  for (auto& parcel : parcels) {
    works.push_back(parcel.start(group, root, label));
  }
  for (size_t i = 0; i < works.size(); ++i) {
    works[i].wait();
    parcels[i].unpack();
  }
}

}  // namespace fairshard::comm
