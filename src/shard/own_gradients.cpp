#include <fairshard/shard/own_gradients.h>

#include <c10/util/Exception.h>

namespace fairshard::shard {

std::vector<std::pair<at::Tensor, at::Tensor>> gradients_to_compare(
    const std::vector<std::shared_ptr<FlatParameters>>& parts) {
  std::vector<std::pair<at::Tensor, at::Tensor>> result;
  for (const auto& part : parts) {
    TORCH_CHECK(!part->join,
                "gradients of ranks cannot be compared (AdaScale) within join(), where ranks may "
                "have none");
    TORCH_CHECK(!part->on_reduced,
                "gradients of ranks cannot be compared (AdaScale) with step_in_backward, which "
                "drops them one by one");
    TORCH_CHECK(!part->awaits_reduction,
                "gradients cannot be compared (AdaScale) before they are reduced: the last "
                "backward of a step must not be within no_sync()");
    const auto own = part->own_gradients();
    result.insert(result.end(), own.begin(), own.end());
  }
  return result;
}

}  // namespace fairshard::shard
