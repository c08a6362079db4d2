#include "wrapper_key.h"
#include <fairshard/shard/grad_handle.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace fairshard::shard {
namespace {

/// See Note [Handles in .grad].
class GradHandle final : public c10::TensorImpl {
 public:
  GradHandle(std::weak_ptr<ShardedGradients> gradients, size_t parameter, at::IntArrayRef sizes,
             at::IntArrayRef strides, const at::TensorOptions& options)
      : TensorImpl(c10::DispatchKeySet(kWrapperKey), options.dtype(), options.device()),
        gradients_(std::move(gradients)),
        identity_(gradients_.lock().get()),
        parameter_(parameter) {
    set_sizes_and_strides(sizes, strides);
    set_storage_access_should_throw();
  }

  size_t parameter() const { return parameter_; }
  /// Of whom, also when they are about to end.
  const ShardedGradients* identity() const { return identity_; }
  std::shared_ptr<ShardedGradients> gradients() const { return gradients_.lock(); }
  at::TensorOptions options() const { return at::TensorOptions(dtype()).device(device()); }
  at::Tensor like_this(const at::TensorOptions& options) const {
    return at::detail::make_tensor<GradHandle>(gradients_, parameter_, sizes(), strides(), options);
  }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool /*allow*/) const override {
    return copy(version);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool /*allow*/) const override {
    return copy(version);
  }
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override {
    const auto* const handle = dynamic_cast<const GradHandle*>(other.get());
    TORCH_CHECK(handle, "a handle on a sharded gradient cannot become a plain tensor in place");
    copy_tensor_metadata(handle, this, version_counter(), allow_tensor_metadata_change());
    gradients_ = handle->gradients_;
    identity_ = handle->identity_;
    parameter_ = handle->parameter_;
  }

 private:
  c10::intrusive_ptr<TensorImpl> copy(const c10::VariableVersion& version) const {
    auto result =
        c10::make_intrusive<GradHandle>(gradients_, parameter_, sizes(), strides(), options());
    result->set_version_counter(version);
    return result;
  }

  std::weak_ptr<ShardedGradients> gradients_;
  const ShardedGradients* identity_;
  size_t parameter_;
};

const GradHandle* as_handle(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kWrapperKey)
             ? dynamic_cast<const GradHandle*>(tensor.unsafeGetTensorImpl())
             : nullptr;
}

/// An operator that was called with handles among its arguments.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), stack_(stack), begin_(stack.size() - op.schema().arguments().size()) {
    for (size_t i = begin_; i < stack_.size(); ++i) {
      find_handles(stack_[i]);
    }
    TORCH_CHECK(!handles_.empty(), op.schema().name(), ": no sharded gradient is given");
  }

  void run() {
    const at::NoGradGuard no_grad;
    const std::string& name = op_.schema().name();
    if (name == "aten::linalg_vector_norm" || name == "aten::norm") {
      give({norm_of(*as_handle(argument(0).toTensor()))});
    } else if (name == "aten::_foreach_norm") {
      c10::List<at::Tensor> norms;
      for (const GradHandle* const handle : handles_) {
        norms.push_back(norm_of(*handle));
      }
      give({norms});
    } else if (name == "aten::detach" || name == "aten::alias" || name == "aten::detach_") {
      give({argument(0)});
    } else if (name == "aten::to" || name == "aten::_to_copy") {
      give({converted()});
    } else if (name == "aten::_has_compatible_shallow_copy_type") {
      give({false});  // a module that is cast then puts the converted handle into .grad
    } else if (is_element_wise()) {
      change_shards();
    } else if (name == "aten::_amp_foreach_non_finite_check_and_unscale_") {
      const at::Tensor found_infinity = argument(1).toTensor();
      change_shards();
      gradients_of(*handles_[0])->reduce_flag(found_infinity);
    } else {
      refuse();
    }
  }

 private:
  const c10::IValue& argument(size_t number) const { return stack_[begin_ + number]; }

  const c10::IValue* argument(std::string_view name) const {
    const auto number = op_.schema().argumentIndexWithName(name);
    return number ? &argument(static_cast<size_t>(*number)) : nullptr;
  }

  void give(std::vector<c10::IValue> results) {
    stack_.resize(begin_);
    stack_.insert(stack_.end(), results.begin(), results.end());
  }

  void find_handles(const c10::IValue& value) {
    if (value.isTensor()) {
      if (const auto* const handle = as_handle(value.toTensor())) {
        handles_.push_back(handle);
      }
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        find_handles(tensor);
      }
    }
  }

  std::shared_ptr<ShardedGradients> gradients_of(const GradHandle& handle) const {
    auto gradients = handle.gradients();
    TORCH_CHECK(gradients, op_.schema().name(), ": the OSS that had this sharded gradient is gone");
    return gradients;
  }

  at::Tensor norm_of(const GradHandle& handle) const {
    const auto* const dims = argument("dim");
    const auto* const keeps = argument("keepdim");
    const bool is_of_all = !dims || dims->isNone() || dims->toIntVector().empty() ||
                           dims->toIntVector().size() == handle.sizes().size();
    if (!is_of_all || (keeps && keeps->toBool())) {
      refuse();
    }
    const auto& power = argument(1);
    const auto* const dtype = argument("dtype");
    const at::Tensor norm = gradients_of(handle)->norm_of(
        handle.parameter(), power.isNone() ? 2.0 : power.toScalar().toDouble());
    return dtype && !dtype->isNone() ? norm.to(dtype->toScalarType()) : norm;
  }

  /// What the operator would make of an empty tensor like it: another dtype or device.
  at::Tensor converted() const {
    torch::jit::Stack inner(stack_.begin() + static_cast<std::ptrdiff_t>(begin_), stack_.end());
    std::vector<int64_t> sizes =
        handles_[0]->sizes().vec();  // as many: a memory format may be asked for
    if (!sizes.empty()) {
      sizes[0] = 0;
    }
    inner[0] = at::empty(sizes, handles_[0]->options());
    op_.callBoxed(&inner);
    return handles_[0]->like_this(inner.back().toTensor().options());
  }

  /// Whether the operator changes every element of its first argument by itself and alike.
  bool is_element_wise() const {
    static const std::unordered_set<std::string_view> names = {
        "mul_", "div_", "clamp_", "clamp_min_", "clamp_max_", "zero_", "neg_", "nan_to_num_"};
    std::string_view name = op_.schema().name();
    name.remove_prefix(std::string_view("aten::").size());
    if (name.rfind("_foreach_", 0) == 0) {
      name.remove_prefix(std::string_view("_foreach_").size());
    }
    if (names.count(name) == 0) {
      return false;
    }
    for (size_t i = begin_ + 1; i < stack_.size(); ++i) {
      if (stack_[i].isTensorList() || (stack_[i].isTensor() && stack_[i].toTensor().dim() > 0)) {
        return false;
      }
    }
    return true;
  }

  /// Runs the operator with shards in place of handles.
  void change_shards() {
    torch::jit::Stack inner(stack_.begin() + static_cast<std::ptrdiff_t>(begin_), stack_.end());
    const c10::IValue first = argument(0);
    if (first.isTensor()) {
      inner[0] = shard_of(first.toTensor());
    } else {
      c10::List<at::Tensor> shards;
      for (const at::Tensor& tensor : first.toTensorVector()) {
        shards.push_back(as_handle(tensor) ? shard_of(tensor) : tensor);
      }
      inner[0] = shards;
    }
    op_.callBoxed(&inner);
    for (const GradHandle* const handle : handles_) {
      gradients_of(*handle)->mark_changed();
    }
    give(op_.schema().returns().empty() ? std::vector<c10::IValue>() : std::vector{first});
  }

  at::Tensor shard_of(const at::Tensor& handle) const {
    const auto* const impl = as_handle(handle);
    return gradients_of(*impl)->shard_of(impl->parameter());
  }

  [[noreturn]] void refuse() const {
    const GradHandle& handle = *handles_[0];
    TORCH_CHECK(
        false, "the gradient of parameter '", gradients_of(handle)->name_of(handle.parameter()),
        "' is sharded: this rank has only a part of it, and ", op_.schema().name(),
        " needs all. Let the OSS that has the parameter step it. Norms, clipping and scaling "
        "work on sharded gradients; whole ones are in .grad with the mode 'optimizer'");
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  size_t begin_;
  std::vector<const GradHandle*> handles_;
};

}  // namespace

void run_with_handles(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  Call(op, stack).run();
}

at::Tensor make_grad_handle(std::weak_ptr<ShardedGradients> gradients, size_t parameter,
                            const at::Tensor& parameter_tensor) {
  return at::detail::make_tensor<GradHandle>(std::move(gradients), parameter,
                                             parameter_tensor.sizes(), parameter_tensor.strides(),
                                             parameter_tensor.options());
}

bool is_grad_handle(const at::Tensor& gradient, const ShardedGradients* gradients) {
  const auto* const handle = as_handle(gradient);
  return handle && (!gradients || handle->identity() == gradients);
}

at::Tensor whole_grad(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  return is_grad_handle(gradient) ? at::Tensor() : gradient;
}

}  // namespace fairshard::shard
