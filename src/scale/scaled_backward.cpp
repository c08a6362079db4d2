#include <fairshard/scale/scaled_backward.h>

#include <torch/csrc/autograd/graph_task.h>

namespace fairshard::scale {
namespace {

struct Mark {
  int backward = -1;
  int64_t scaler = 0;
  at::Tensor scale;
};

// A loss and the parameters on its device have their hooks run by one thread. The backward's own
// number tells an old mark from a valid one.
thread_local Mark last_mark;

bool is_marked() {
  const int backward = torch::autograd::get_current_graph_task_id();
  return backward >= 0 && backward == last_mark.backward;
}

}  // namespace

void mark_scaled_backward(int64_t scaler, const at::Tensor& scale) {
  last_mark = {torch::autograd::get_current_graph_task_id(), scaler, scale};
}

int64_t scaler_of_backward() { return is_marked() ? last_mark.scaler : 0; }

at::Tensor scale_of_backward() { return is_marked() ? last_mark.scale : at::Tensor(); }

}  // namespace fairshard::scale
