#pragma once
// What stands in .grad of a parameter of whose gradient a rank has only a shard.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>

namespace fairshard::shard {

/// Note [Handles in .grad]: torch's own functions look at .grad: clip_grad_norm_, clip_grad_value_,
/// zero_grad, grad scalers, and whatever logs norms. Where gradients are sharded they find a handle
/// there: a tensor of the parameter's sizes without memory. Norms of it are those of the whole
/// gradient (collective: all ranks ask for them); what changes every element alike, in place,
/// changes this rank's shard; anything else is refused with the reason, an optimizer's step on the
/// parameters for instance. Setting .grad to None drops the shard. It is a TensorImpl with a
/// dispatch key of its own (wrapper_key.h), so that C++ and Python have the same.
class ShardedGradients {
 public:
  virtual ~ShardedGradients() = default;
  /// This rank's part of a parameter's gradient, flat. It may be empty.
  virtual at::Tensor shard_of(size_t parameter) = 0;
  /// The norm of the whole gradient. Collective.
  virtual at::Tensor norm_of(size_t parameter, double norm_type) = 0;
  /// Says that shards were changed in place.
  virtual void mark_changed() = 0;
  /// Makes a flag the largest of all ranks'. Collective.
  virtual void reduce_flag(const at::Tensor& flag) const = 0;
  virtual std::string name_of(size_t parameter) const = 0;
};

/// A handle on the gradient of a parameter, which is like `parameter_tensor`.
at::Tensor make_grad_handle(std::weak_ptr<ShardedGradients> gradients, size_t parameter,
                            const at::Tensor& parameter_tensor);
/// Whether a gradient is a handle, of these gradients or of any.
bool is_grad_handle(const at::Tensor& gradient, const ShardedGradients* gradients = nullptr);
/// A parameter's .grad if it is one of this rank's own, and not a handle; else undefined.
at::Tensor whole_grad(const at::Tensor& parameter);

}  // namespace fairshard::shard
