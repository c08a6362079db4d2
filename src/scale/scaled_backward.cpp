#include <fairshard/scale/scaled_backward.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace fairshard::scale {
namespace {

struct Mark {
  int backward = -1;
  int64_t scaler = 0;
  at::Tensor scale;
  /// Until the backward has ended, also if by an error.
  std::weak_ptr<void> running;
};

// Note [Backwards within backwards]
// A loss and the parameters on its device have their hooks run by one thread, and so do backwards
// that are run within its own (reentrant checkpointing): autograd numbers those anew, and does not
// say which one they are in. But that one is still running, and it is the last one marked on this
// thread that is. Autograd keeps what is to be called at a backward's end as long as the backward
// runs, and no longer, whether it ends well or by an error: that is how it is known here.
thread_local std::vector<Mark> marks;

/// Of the backward that runs now, or of the innermost one around it; null if none is marked.
const Mark* current_mark() {
  const int backward = torch::autograd::get_current_graph_task_id();
  if (backward < 0) {
    return nullptr;
  }
  std::erase_if(marks, [](const Mark& mark) { return mark.running.expired(); });
  const auto own = std::find_if(marks.begin(), marks.end(),
                                [&](const Mark& mark) { return mark.backward == backward; });
  if (own != marks.end()) {
    return &*own;
  }
  return marks.empty() ? nullptr : &marks.back();
}

}  // namespace

void mark_scaled_backward(int64_t scaler, const at::Tensor& scale) {
  const int backward = torch::autograd::get_current_graph_task_id();
  std::erase_if(
      marks, [&](const Mark& mark) { return mark.backward == backward || mark.running.expired(); });
  const auto running = std::make_shared<char>();
  torch::autograd::Engine::get_default_engine().queue_callback([running] {});
  marks.push_back({backward, scaler, scale, running});
}

int64_t scaler_of_backward() {
  const Mark* const mark = current_mark();
  return mark ? mark->scaler : 0;
}

at::Tensor scale_of_backward() {
  const Mark* const mark = current_mark();
  return mark ? mark->scale : at::Tensor();
}

}  // namespace fairshard::scale
