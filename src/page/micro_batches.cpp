#include <fairshard/page/micro_batches.h>

#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

namespace fairshard::page {

std::vector<std::vector<at::Tensor>> cut_batch(const std::vector<at::Tensor>& tensors,
                                               int64_t num_microbatches) {
  if (num_microbatches == 1) {
    return {tensors};
  }
  std::vector<std::vector<at::Tensor>> parts(num_microbatches);
  for (const at::Tensor& tensor : tensors) {
    const int64_t batch = tensor.dim() == 0 ? 0 : tensor.size(0);
    TORCH_CHECK_VALUE(batch > 0 && batch % num_microbatches == 0, "a batch of ", batch,
                      " does not divide into num_microbatches = ", num_microbatches,
                      " equal parts");
    const int64_t length = batch / num_microbatches;
    for (int64_t i = 0; i < num_microbatches; ++i) {
      parts[i].push_back(tensor.narrow(0, i * length, length));
    }
  }
  return parts;
}

std::vector<at::Tensor> join_batches(const std::vector<std::vector<at::Tensor>>& parts) {
  if (parts.size() == 1) {
    return parts[0];
  }
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < parts[0].size(); ++i) {
    std::vector<at::Tensor> pieces;
    for (const auto& part : parts) {
      TORCH_CHECK_VALUE(part[i].dim() > 0,
                        "the model returns a number, which micro-batches have one of each: return "
                        "a batch of them");
      pieces.push_back(part[i]);
    }
    result.push_back(at::cat(pieces));
  }
  return result;
}

}  // namespace fairshard::page
