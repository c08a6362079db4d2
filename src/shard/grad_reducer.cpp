#include "bucket_queue.h"
#include "weak_registry.h"
#include <fairshard/shard/grad_reducer.h>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace fairshard::shard {
namespace {

using torch::autograd::variable_list;

/// A function to be called before a gradient is accumulated.
class LambdaPreHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit LambdaPreHook(std::function<void()> function) : function_(std::move(function)) {}

  variable_list operator()(const variable_list& gradients) override {
    function_();
    return gradients;
  }

 private:
  std::function<void()> function_;
};

}  // namespace

/// What the hooks hold on to, weakly: reducers that are gone leave hooks that do nothing. See
/// Note [Reducers that share parameters].
class GradReducer::Hooks : public std::enable_shared_from_this<Hooks> {
 public:
  Hooks() = default;
  ~Hooks() { unhook_all(); }
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  /// Those that have one of the groups already, or new ones. If several have, they become one.
  static std::shared_ptr<Hooks> of(const std::vector<ReducedGroup>& groups) {
    std::shared_ptr<Hooks> result;
    for (const ReducedGroup& group : groups) {
      const auto found = registry().find(group.group.get());
      if (!result) {
        result = found;
      } else if (found && found != result) {
        result->absorb(*found);
      }
    }
    return result ? result : std::make_shared<Hooks>();
  }

  void add(GradReducer* reducer, std::vector<ReducedGroup> groups, const ReducerOptions& options) {
    for (const auto& [group, step] : groups) {
      TORCH_CHECK_VALUE(
          options.mode() == GradientMode::kSharded || !group->options().step_in_backward(),
          "step_in_backward needs sharded gradients (the mode 'gradients')");
    }
    TORCH_CHECK_VALUE(!options.comm_hook() || options.mode() == GradientMode::kReplicated,
                      "a communication hook averages whole gradients, but those of parameter '",
                      groups[0].group->parameters()[0].name,
                      "' are sharded by an OSS: use the mode 'optimizer', or no OSS");
    TORCH_CHECK_VALUE(!options.comm_hook() || !options.wire_dtype(),
                      "a communication hook decides itself how gradients travel: leave "
                      "reduce_dtype off");
    if (!members_.empty()) {
      const ReducerOptions& others = members_[0].options;
      TORCH_CHECK_VALUE(
          others.mode() == options.mode() && others.wire_dtype() == options.wire_dtype() &&
              others.comm_hook() == options.comm_hook() && !others.static_graph() &&
              !options.static_graph(),
          "models that share parameter '", groups[0].group->parameters()[0].name,
          "' or others of its optimizer must be wrapped with the same mode, reduce_dtype and "
          "communication hook, and without static_graph");
    }
    members_.push_back({reducer, std::move(groups), options});
    is_stale_ = true;
  }

  void remove(const GradReducer* reducer) {
    members_.erase(std::remove_if(members_.begin(), members_.end(),
                                  [&](const Member& member) { return member.reducer == reducer; }),
                   members_.end());
    is_stale_ = true;
  }

  void prepare() {
    if (std::exchange(is_stale_, false)) {
      rebuild();
    }
    for (const auto& [group, step] : groups_) {
      group->rebind();
    }
    if (!queue_->is_idle()) {
      queue_->reset();  // the last backward threw before its end
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
        take_over(tensor);
        put_on(hook, accumulator);
      }
    }
  }

  void reduce() { queue_->finish(); }

  void set_join(std::shared_ptr<Join> join) {
    join_ = std::move(join);
    queue_->set_join(join_);
  }

  std::mutex mutex;
  bool is_sync = true;

 private:
  struct Member {
    GradReducer* reducer;
    std::vector<ReducedGroup> groups;
    ReducerOptions options;
  };

  // Its type changed from a shared_ptr to an intrusive_ptr in torch 2.15.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));

  struct Hook {
    ParameterId id{};
    Accumulator accumulator;
    const void* before = nullptr;
    uintptr_t after = 0;
  };

  static WeakRegistry<FlatGroup, Hooks>& registry() {
    static WeakRegistry<FlatGroup, Hooks> hooks;
    return hooks;
  }

  /// Which hooks a parameter has had last.
  static WeakRegistry<c10::TensorImpl, Hooks>& last() {
    static WeakRegistry<c10::TensorImpl, Hooks> hooks;
    return hooks;
  }

  /// A parameter that was given to another OSS may have hooks of a model of the first one, which
  /// would take its gradient as well. They are put on again if that model is used again.
  void take_over(const at::Tensor& parameter) {
    const auto other = last().find(parameter.unsafeGetTensorImpl());
    if (other.get() != this) {
      if (other) {
        other->unhook_all();
      }
      last().add(parameter.unsafeGetTensorImpl(), weak_from_this());
    }
  }

  void absorb(Hooks& other) {
    other.unhook_all();
    for (Member& member : other.members_) {
      member.reducer->hooks_ = shared_from_this();
      members_.push_back(std::move(member));
    }
    other.members_.clear();
    is_stale_ = true;
  }

  /// Takes the groups of all members, each once.
  void rebuild() {
    unhook_all();
    groups_.clear();
    ReducerOptions options = members_[0].options;
    std::vector<std::function<void()>> after;
    for (const Member& member : members_) {
      for (const ReducedGroup& added : member.groups) {
        if (std::none_of(groups_.begin(), groups_.end(),
                         [&](const ReducedGroup& group) { return group.group == added.group; })) {
          groups_.push_back(added);
        }
      }
      after.push_back(member.options.after_reduction());
    }
    options.after_reduction([after] {
      for (const auto& function : after) {
        if (function) {
          function();
        }
      }
    });
    queue_ = std::make_unique<BucketQueue>(groups_, options);
    queue_->set_join(join_);
    hooked_.clear();
    for (size_t g = 0; g < groups_.size(); ++g) {
      registry().add(groups_[g].group.get(), weak_from_this());
      for (size_t i = 0; i < groups_[g].group->parameters().size(); ++i) {
        hooked_.emplace_back().id = {g, i};
      }
    }
  }

  static void unhook(Hook& hook) {
    if (hook.accumulator) {
      auto& before = hook.accumulator->pre_hooks();
      before.erase(std::remove_if(before.begin(), before.end(),
                                  [&](const auto& other) { return other.get() == hook.before; }),
                   before.end());
      hook.accumulator->del_post_hook(hook.after);
      hook.accumulator.reset();
    }
  }

  void unhook_all() {
    for (Hook& hook : hooked_) {
      unhook(hook);
    }
  }

  void put_on(Hook& hook, const Accumulator& accumulator) {
    const auto self = weak_from_this();
    auto before = std::make_unique<LambdaPreHook>([self, id = hook.id] {
      if (const auto hooks = self.lock()) {
        hooks->before_gradient(id);
      }
    });
    hook.before = before.get();
    accumulator->add_pre_hook(std::move(before));
    hook.after =
        accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [self, id = hook.id](const variable_list& outputs, const variable_list&) {
              if (const auto hooks = self.lock()) {
                hooks->after_gradient(id);
              }
              return outputs;
            }));
    hook.accumulator = accumulator;
  }

  void before_gradient(ParameterId id) {
    const std::lock_guard lock(mutex);
    if (is_sync && queue_->is_idle()) {
      torch::autograd::Engine::get_default_engine().queue_callback([self = weak_from_this()] {
        if (const auto hooks = self.lock()) {
          const std::lock_guard lock(hooks->mutex);
          hooks->reduce();
        }
      });
      queue_->begin();
    } else if (!is_sync) {
      queue_->begin_unreduced();
    }
    groups_[id.group].group->gradients().stash(id.number);
  }

  void after_gradient(ParameterId id) {
    const std::lock_guard lock(mutex);
    if (is_sync) {
      queue_->take(id);
    } else {
      groups_[id.group].group->gradients().set_await_reduction(true);
    }
  }

  std::vector<Member> members_;
  /// Whether the following are those of other members.
  bool is_stale_ = false;
  std::vector<ReducedGroup> groups_;
  std::unique_ptr<BucketQueue> queue_;
  std::vector<Hook> hooked_;
  std::shared_ptr<Join> join_;
};

GradReducer::GradReducer(std::vector<ReducedGroup> groups, const ReducerOptions& options)
    : hooks_(Hooks::of(groups)) {
  hooks_->add(this, std::move(groups), options);
  try {
    hooks_->prepare();
  } catch (...) {
    hooks_->remove(this);
    throw;
  }
}

GradReducer::~GradReducer() { hooks_->remove(this); }

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
