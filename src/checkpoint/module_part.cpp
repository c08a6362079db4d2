#include <fairshard/checkpoint.h>
#include <fairshard/nn/offload_model.h>

#include <c10/util/Exception.h>

namespace fairshard {
namespace {

class ModulePart : public CheckpointPart {
 public:
  explicit ModulePart(torch::nn::Module& module) : module_(module) {}

  void describe(const std::string& name, CheckpointContext& context) override {
    context.add_module(name, module_);
  }

  void save(const std::string& name, const CheckpointContext& context,
            store::State& state) override {
    for (const auto& item : module_.named_parameters()) {
      const std::string key = c10::str(name, "/", item.key());
      const auto* const slices = context.exact_slices_of(item.value());
      if (!slices) {
        state.add_alike(key, context.master_of(item.value()));
        continue;
      }
      for (const auto& slice : *slices) {
        state.add_range(key, store::layout_of(item.value()), slice.piece.begin, slice.piece.end,
                        slice.values);
      }
    }
    for (const auto& item : module_.named_buffers()) {
      if (item.value().defined()) {
        state.add_first(c10::str(name, "/", item.key()), item.value());
      }
    }
  }

  void load(const std::string& name, const CheckpointContext& /*context*/,
            store::LoadPlan& plan) override {
    for (const auto& item : module_.named_parameters()) {
      plan.add_tensor(c10::str(name, "/", item.key()), item.value().detach());
    }
    for (const auto& item : module_.named_buffers()) {
      if (item.value().defined()) {
        plan.add_tensor(c10::str(name, "/", item.key()), item.value());
      }
    }
  }

 private:
  torch::nn::Module& module_;
};

class PagedModulePart final : public ModulePart {
 public:
  PagedModulePart(torch::nn::Module& module, OffloadModel& offload)
      : ModulePart(module), offload_(offload) {}

  void describe(const std::string& name, CheckpointContext& context) override {
    offload_.wait_for_step();
    ModulePart::describe(name, context);
  }
  bool can_copy() const override { return false; }

 private:
  OffloadModel& offload_;
};

}  // namespace

std::shared_ptr<CheckpointPart> detail::module_part(torch::nn::Module& module) {
  return std::make_shared<ModulePart>(module);
}

std::shared_ptr<CheckpointPart> detail::module_part(torch::nn::Module& module,
                                                    OffloadModel& offload) {
  return std::make_shared<PagedModulePart>(module, offload);
}

void CheckpointContext::add_module(const std::string& part, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const bool is_new =
        places_.emplace(item.value().unsafeGetTensorImpl(), Place{part, item.key()}).second;
    uses_[item.key()] += is_new ? 1 : 0;
  }
}

void CheckpointContext::add_shards(const std::shared_ptr<shard::FlatGroup>& shards) {
  for (size_t i = 0; i < shards->parameters().size(); ++i) {
    if (shards->bucket(shards->layout().bucket_of(i)).has_master()) {
      exact_[shards->parameters()[i].tensor.unsafeGetTensorImpl()];
    }
  }
  for (const auto& slice : shards->slices()) {
    const auto& tensor = shards->parameters()[slice.piece.parameter].tensor;
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
