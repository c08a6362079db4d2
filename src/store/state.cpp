#include <fairshard/store/state.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace fairshard::store {
namespace {

/// Smaller tensors are not split between ranks.
constexpr int64_t kSplitBytes = 1 << 20;
constexpr int64_t kAlignedBytes = 64;

}  // namespace

Layout layout_of(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()};
}

at::Tensor memory_view(const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(tensor.is_non_overlapping_and_dense());
  return tensor.detach().as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

State::State(int rank, int ranks) : rank_(rank), ranks_(ranks), loads_(ranks) {}

void State::add_alike(const std::string& key, const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (bytes < kSplitBytes || ranks_ == 1) {
    const auto least = std::min_element(loads_.begin(), loads_.end());
    *least += bytes;
    if (least - loads_.begin() == rank_) {
      add_whole(key, tensor);
    }
    return;
  }
  const at::Tensor dense =
      tensor.is_non_overlapping_and_dense() ? tensor : tensor.detach().contiguous();
  const int64_t aligned = kAlignedBytes / tensor.element_size();
  const auto bound = [&](int64_t rank) {
    return rank == ranks_ ? tensor.numel() : tensor.numel() / ranks_ * rank / aligned * aligned;
  };
  const int64_t begin = bound(rank_);
  const int64_t end = bound(rank_ + 1);
  add_range(key, layout_of(dense), begin, end, memory_view(dense).slice(0, begin, end));
}

void State::add_first(const std::string& key, const at::Tensor& tensor) {
  if (rank_ == 0) {
    add_whole(key, tensor);
  }
}

void State::add_range(const std::string& key, const Layout& whole, int64_t begin, int64_t end,
                      const at::Tensor& values) {
  TORCH_CHECK_VALUE(values.numel() == end - begin && values.is_non_overlapping_and_dense(), "'",
                    key, "': a range of ", end - begin, " elements has values of sizes ",
                    values.sizes());
  Layout layout = whole;
  layout.dtype = values.scalar_type();
  const at::Tensor flat = memory_view(values);
  entries_.push_back(
      {key, std::move(layout), begin, end, [flat]() -> const at::Tensor& { return flat; }});
}

void State::add_whole(const std::string& key, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, "'", key, "' is ", tensor.layout(),
                   ", but only dense tensors can be saved");
  const at::Tensor dense =
      tensor.is_non_overlapping_and_dense() ? tensor : tensor.detach().contiguous();
  add_range(key, layout_of(dense), 0, dense.numel(), dense);
}

void State::add_value(const std::string& key, const std::string& json) {
  if (rank_ == 0) {
    add_own_value(key, json);
  }
}

void State::add_own_value(const std::string& key, const std::string& json) {
  TORCH_CHECK_VALUE(values_.emplace(key, json).second, "the value '", key, "' is added twice");
}

void State::replace(const std::function<at::Tensor(const Entry& entry)>& copy) {
  for (Entry& entry : entries_) {
    entry.values = [values = copy(entry)]() -> const at::Tensor& { return values; };
  }
}

std::string node_prefix(int node) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "node-%05d/", node);
  return text.data();
}

int count_nodes(const Manifest& manifest) {
  int nodes = 0;
  const auto has = [&](int node) {
    const std::string prefix = node_prefix(node);
    const auto first = manifest.tensors.lower_bound(prefix);
    return first != manifest.tensors.end() && first->first.rfind(prefix, 0) == 0;
  };
  while (has(nodes)) {
    ++nodes;
  }
  return nodes;
}

std::string own_key(const std::string& part, int rank, const std::string& name) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "/rank-%05d/", rank);
  return part + text.data() + name;
}

}  // namespace fairshard::store
