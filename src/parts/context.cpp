#include <fairshard/parts/part.h>

namespace fairshard {

void CheckpointContext::add_parameter(const std::string& part, const std::string& name,
                                      const at::Tensor& parameter) {
  const bool is_new = places_.emplace(parameter.unsafeGetTensorImpl(), Place{part, name}).second;
  uses_[name] += is_new ? 1 : 0;
}

void CheckpointContext::add_shards(const shard::FlatGroup& shards) {
  for (size_t i = 0; i < shards.parameters().size(); ++i) {
    if (shards.bucket(shards.layout().bucket_of(i)).has_master()) {
      exact_[shards.parameters()[i].tensor.unsafeGetTensorImpl()];
    }
  }
  if (shards.mesh().replica() > 0) {
    return;  // of replicas, which have the same, the first saves
  }
  for (const auto& slice : shards.slices()) {
    const auto& tensor = shards.parameters()[slice.piece.parameter].tensor;
    const auto found = exact_.find(tensor.unsafeGetTensorImpl());
    if (found != exact_.end()) {
      found->second.push_back(slice);
    }
  }
}

void CheckpointContext::add_master(const at::Tensor& parameter, const at::Tensor& master) {
  masters_[parameter.unsafeGetTensorImpl()] = master;
}

at::Tensor CheckpointContext::master_of(const at::Tensor& parameter) const {
  const auto found = masters_.find(parameter.unsafeGetTensorImpl());
  return found == masters_.end() ? parameter : found->second;
}

std::optional<std::string> CheckpointContext::name_of(const at::Tensor& parameter) const {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  if (found == places_.end()) {
    return std::nullopt;
  }
  const auto& [part, name] = found->second;
  return uses_.at(name) == 1 ? name : part + "/" + name;
}

std::optional<std::string> CheckpointContext::key_of(const at::Tensor& parameter) const {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  return found == places_.end() ? std::nullopt
                                : std::optional(found->second.part + "/" + found->second.name);
}

const std::vector<shard::Slice>* CheckpointContext::exact_slices_of(
    const at::Tensor& parameter) const {
  const auto found = exact_.find(parameter.unsafeGetTensorImpl());
  return found == exact_.end() ? nullptr : &found->second;
}

}  // namespace fairshard
