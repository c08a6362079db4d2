#include <fairshard/parts/checkpoint_base.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace fairshard {

CheckpointBase::CheckpointBase(std::optional<comm::Group> group, const std::string& directory,
                               const CheckpointOptions& options)
    : rank_(group ? group->rank() : 0),
      ranks_(group ? group->size() : 1),
      saver_(std::move(group), directory, options) {}

void CheckpointBase::add_part(const std::string& name, std::shared_ptr<CheckpointPart> part) {
  TORCH_CHECK_VALUE(!name.empty(), "a part of a checkpoint has no name");
  TORCH_CHECK_VALUE(part, "the part '", name, "' of a checkpoint is a null pointer");
  for (const auto& [known, other] : parts_) {
    const bool is_clear =
        known != name && known.rfind(name + "/", 0) != 0 && name.rfind(known + "/", 0) != 0;
    TORCH_CHECK_VALUE(is_clear, "the parts '", known, "' and '", name, "' of a checkpoint overlap");
  }
  parts_.emplace_back(name, std::move(part));
}

void CheckpointBase::set_nodes(const outer::Nodes& nodes) {
  rank_ = nodes.intra_node().rank();
  ranks_ = nodes.intra_node().size();
  node_ = nodes.number();
}

std::string CheckpointBase::prefix() const {
  return node_ ? store::node_prefix(*node_) : std::string();
}

/// Where there were fewer nodes, several take what one had; where there were more, that of the last
/// ones is left.
std::string CheckpointBase::prefix_in(const store::Reader& reader) const {
  if (!node_) {
    return "";
  }
  const int saved = store::count_nodes(reader.manifest());
  return store::node_prefix(saved > 0 ? *node_ % saved : *node_);
}

CheckpointContext CheckpointBase::describe(const std::string& prefix) {
  CheckpointContext context;
  for (const auto& [name, part] : parts_) {
    part->describe(prefix + name, context);
  }
  return context;
}

store::State CheckpointBase::state() {
  const std::string own = prefix();
  const CheckpointContext context = describe(own);
  store::State state(rank_, ranks_);
  for (const auto& [name, part] : parts_) {
    state.add_part(name);
    part->save(own + name, context, state);
  }
  return state;
}

void CheckpointBase::save_async(int64_t step) {
  const bool can_copy = std::all_of(parts_.begin(), parts_.end(),
                                    [](const auto& part) { return part.second->can_copy(); });
  can_copy ? saver_.save_async(step, state()) : saver_.save(step, state());
}

std::optional<LoadReport> CheckpointBase::load(bool strict) {
  const auto directory = saver_.latest();
  return directory ? std::optional(load_from(*directory, strict)) : std::nullopt;
}

LoadReport CheckpointBase::load_from(const std::string& directory, bool strict) {
  std::unique_ptr<store::Reader> reader;
  std::unique_ptr<store::LoadPlan> plan;
  LoadReport report;
  saver_.together([&] { reader = std::make_unique<store::Reader>(directory); });
  const std::string stored = prefix_in(*reader);
  const CheckpointContext context = describe(stored);
  saver_.together([&] {
    plan = std::make_unique<store::LoadPlan>(*reader, rank_, ranks_);
    for (const auto& [name, part] : parts_) {
      plan->add_part(stored + name);
      part->load(stored + name, context, *plan);
    }
    report = plan->check(strict);
  });
  saver_.together([&] { plan->take(); });
  plan->finish();
  return report;
}

}  // namespace fairshard
