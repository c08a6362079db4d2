#include "bucket_filler.h"
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
  Hooks(std::shared_ptr<FlatParameters> parameters, const ReducerOptions& options)
      : parameters_(std::move(parameters)),
        filler_(parameters_, options),
        hooked_(parameters_->parameters().size()) {}

  ~Hooks() {
    for (const auto& hook : hooked_) {
      if (hook.accumulator) {
        hook.accumulator->del_post_hook(hook.key);
      }
    }
  }
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  void prepare() {
    parameters_->wait_for_values();
    parameters_->check_in_place();
    if (!filler_.is_idle()) {
      filler_.reset();  // the last backward threw before its end
    }
    for (size_t i = 0; i < hooked_.size(); ++i) {
      const at::Tensor& tensor = parameters_->parameters()[i].tensor;
      if (tensor.requires_grad() && !hooked_[i].accumulator) {
        hooked_[i].accumulator = torch::autograd::impl::grad_accumulator(tensor);
        hooked_[i].key = hooked_[i].accumulator->add_post_hook(make_hook(i));
      }
    }
  }

  void reduce() { filler_.finish(); }

  std::mutex mutex;
  bool is_sync = true;

 private:
  // Its type changed from a shared_ptr to an intrusive_ptr in torch 2.15.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));

  struct Hook {
    Accumulator accumulator;
    uintptr_t key = 0;
  };

  std::unique_ptr<torch::autograd::FunctionPostHook> make_hook(size_t parameter) {
    return std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [self = weak_from_this(), parameter](const variable_list& outputs, const variable_list&) {
          if (const auto hooks = self.lock()) {
            hooks->on_gradient(parameter);
          }
          return outputs;
        });
  }

  void on_gradient(size_t parameter) {
    const std::lock_guard lock(mutex);
    if (!is_sync) {
      return;
    }
    if (filler_.is_idle()) {
      torch::autograd::Engine::get_default_engine().queue_callback([self = weak_from_this()] {
        if (const auto hooks = self.lock()) {
          const std::lock_guard lock(hooks->mutex);
          hooks->reduce();
        }
      });
    }
    filler_.take(parameter);
  }

  std::shared_ptr<FlatParameters> parameters_;
  BucketFiller filler_;
  std::vector<Hook> hooked_;
};

GradReducer::GradReducer(std::shared_ptr<FlatParameters> parameters, const ReducerOptions& options)
    : hooks_(std::make_shared<Hooks>(std::move(parameters), options)) {
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

bool GradReducer::sync() const {
  const std::lock_guard lock(hooks_->mutex);
  return hooks_->is_sync;
}

}  // namespace fairshard::shard
