#include "parts.h"
#include <fairshard/checkpoint.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace fairshard {

Checkpoint::Checkpoint(comm::Group group, const std::string& directory,
                       const CheckpointOptions& options)
    : rank_(group.rank()), ranks_(group.size()), saver_(std::move(group), directory, options) {}

Checkpoint::Checkpoint(const std::string& directory, const CheckpointOptions& options)
    : rank_(0), ranks_(1), saver_(std::nullopt, directory, options) {}

Checkpoint& Checkpoint::add(const std::string& name, std::shared_ptr<CheckpointPart> part) {
  TORCH_CHECK_VALUE(!name.empty(), "a part of a checkpoint has no name");
  TORCH_CHECK_VALUE(part, "the part '", name, "' of a checkpoint is a null pointer");
  for (const auto& [known, other] : parts_) {
    // Keys begin with the part's name, and each must belong to one part only.
    const bool is_clear =
        known != name && known.rfind(name + "/", 0) != 0 && name.rfind(known + "/", 0) != 0;
    TORCH_CHECK_VALUE(is_clear, "the parts '", known, "' and '", name, "' of a checkpoint overlap");
  }
  parts_.emplace_back(name, std::move(part));
  return *this;
}

Checkpoint& Checkpoint::add(const std::string& name, torch::optim::Optimizer& optimizer) {
  return add(name, make_part(optimizer));
}
Checkpoint& Checkpoint::add(const std::string& name, ShardedGradScaler& scaler) {
  return add(name, make_part(scaler));
}
Checkpoint& Checkpoint::add(const std::string& name, LearningRate& rate) {
  return add(name, make_part(rate));
}
Checkpoint& Checkpoint::add(const std::string& name, SlowMoBase& slowmo) {
  const outer::Nodes& nodes = slowmo.synchroniser().nodes();
  rank_ = nodes.inside().rank();
  ranks_ = nodes.inside().size();
  prefix_ = store::node_prefix(nodes.number());
  return add(name, make_part(slowmo));
}
Checkpoint& Checkpoint::add(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined() && tensor.layout() == at::kStrided, "the part '", name,
                    "' of a checkpoint must be a dense tensor, but is ",
                    tensor.defined() ? c10::str(tensor.layout()) : "not defined");
  return add(name, make_part(tensor));
}
Checkpoint& Checkpoint::add_rng(const std::string& name) { return add(name, make_rng_part()); }

CheckpointContext Checkpoint::describe() {
  CheckpointContext context;
  for (const auto& [name, part] : parts_) {
    part->describe(prefix_ + name, context);
  }
  return context;
}

store::State Checkpoint::state() {
  const CheckpointContext context = describe();
  store::State state(rank_, ranks_);
  for (const auto& [name, part] : parts_) {
    part->save(prefix_ + name, context, state);
  }
  return state;
}

void Checkpoint::save(int64_t step) { saver_.save(step, state()); }

void Checkpoint::save_async(int64_t step) {
  const bool can_copy = std::all_of(parts_.begin(), parts_.end(),
                                    [](const auto& part) { return part.second->can_copy(); });
  can_copy ? saver_.save_async(step, state()) : saver_.save(step, state());
}

std::optional<LoadReport> Checkpoint::load(bool strict) {
  const auto directory = saver_.latest();
  return directory ? std::optional(load_from(*directory, strict)) : std::nullopt;
}

LoadReport Checkpoint::load_from(const std::string& directory, bool strict) {
  const CheckpointContext context = describe();
  std::unique_ptr<store::Reader> reader;
  std::unique_ptr<store::LoadPlan> plan;
  LoadReport report;
  saver_.together([&] {
    reader = std::make_unique<store::Reader>(directory);
    plan = std::make_unique<store::LoadPlan>(*reader, rank_, ranks_);
    for (const auto& [name, part] : parts_) {
      plan->add_part(prefix_ + name);
      part->load(prefix_ + name, context, *plan);
    }
    report = plan->check(strict);
  });
  saver_.together([&] { plan->take(); });
  plan->finish();
  return report;
}

}  // namespace fairshard
