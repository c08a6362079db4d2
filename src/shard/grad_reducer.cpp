#include "bucket_queue.h"
#include <fairshard/shard/grad_reducer.h>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <utility>

namespace fairshard::shard {

using torch::autograd::variable_list;

/// What the hooks hold on to, weakly: a reducer that is gone leaves hooks that do nothing.
class GradReducer::Hooks : public std::enable_shared_from_this<Hooks> {
 public:
  Hooks(std::vector<ReducedGroup> groups, const ReducerOptions& options)
      : groups_(std::move(groups)), queue_(groups_, options) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (size_t i = 0; i < groups_[g].group->parameters().size(); ++i) {
        hooked_.emplace_back().id = {g, i};
      }
    }
  }

  ~Hooks() {
    for (Hook& hook : hooked_) {
      unhook(hook);
    }
  }
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  void prepare() {
    for (const auto& [group, step] : groups_) {
      group->rebind();
    }
    if (!queue_.is_idle()) {
      queue_.reset();  // the last backward threw before its end
    }
    for (Hook& hook : hooked_) {
      const auto& [name, tensor, group] =
          groups_[hook.id.group].group->parameters()[hook.id.number];
      TORCH_CHECK(!tensor.grad().defined() || !tensor.grad().requires_grad(),
                  "the gradient of parameter '", name,
                  "' itself requires a gradient (create_graph), which cannot be reduced");
      if (!tensor.requires_grad()) {
        continue;
      }
      // A cast of the parameter's data brings it a new accumulator.
      const Accumulator accumulator = torch::autograd::impl::grad_accumulator(tensor);
      if (accumulator != hook.accumulator) {
        unhook(hook);
        hook.accumulator = accumulator;
        hook.key = accumulator->add_post_hook(make_hook(hook.id));
      }
    }
  }

  void reduce() { queue_.finish(); }
  void set_join(std::shared_ptr<Join> join) { queue_.set_join(std::move(join)); }

  std::mutex mutex;
  bool is_sync = true;

 private:
  // Its type changed from a shared_ptr to an intrusive_ptr in torch 2.15.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));

  struct Hook {
    ParameterId id{};
    Accumulator accumulator;
    uintptr_t key = 0;
  };

  static void unhook(Hook& hook) {
    if (hook.accumulator) {
      hook.accumulator->del_post_hook(hook.key);
      hook.accumulator.reset();
    }
  }

  std::unique_ptr<torch::autograd::FunctionPostHook> make_hook(ParameterId id) {
    return std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [self = weak_from_this(), id](const variable_list& outputs, const variable_list&) {
          if (const auto hooks = self.lock()) {
            hooks->on_gradient(id);
          }
          return outputs;
        });
  }

  void on_gradient(ParameterId id) {
    const std::lock_guard lock(mutex);
    if (!is_sync) {
      groups_[id.group].group->gradients().set_await_reduction(true);
      return;
    }
    if (queue_.is_idle()) {
      torch::autograd::Engine::get_default_engine().queue_callback([self = weak_from_this()] {
        if (const auto hooks = self.lock()) {
          const std::lock_guard lock(hooks->mutex);
          hooks->reduce();
        }
      });
    }
    queue_.take(id);
  }

  std::vector<ReducedGroup> groups_;
  BucketQueue queue_;
  std::vector<Hook> hooked_;
};

GradReducer::GradReducer(std::vector<ReducedGroup> groups, const ReducerOptions& options)
    : hooks_(std::make_shared<Hooks>(std::move(groups), options)) {
  hooks_->prepare();
}

GradReducer::~GradReducer() = default;

void GradReducer::prepare() {
  const std::lock_guard lock(hooks_->mutex);
  hooks_->prepare();
}

void GradReducer::reduce() {
  const std::lock_guard lock(hooks_->mutex);
  hooks_->reduce();
}

void GradReducer::set_sync(bool is_on) {
  const std::lock_guard lock(hooks_->mutex);
  hooks_->is_sync = is_on;
}

void GradReducer::set_join(std::shared_ptr<Join> join) {
  const std::lock_guard lock(hooks_->mutex);
  hooks_->set_join(std::move(join));
}

bool GradReducer::sync() const {
  const std::lock_guard lock(hooks_->mutex);
  return hooks_->is_sync;
}

}  // namespace fairshard::shard
