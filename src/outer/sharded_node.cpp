#include "sharded_node.h"

#include "layout.h"
#include <fairshard/comm/collectives.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace fairshard::outer {
namespace {

/// The step that has the parameters, or null.
std::shared_ptr<shard::ShardedStep> find_step(const std::vector<shard::Parameter>& parameters) {
  std::shared_ptr<shard::ShardedStep> result;
  for (const auto& parameter : parameters) {
    const auto step = shard::ShardedStep::of(parameter.tensor);
    TORCH_CHECK_VALUE(!step || !result || step == result, "parameter '", parameter.name,
                      "' is in another OSS than those before it: nodes that train apart take one "
                      "OSS with several parameter groups");
    result = step ? step : result;
  }
  for (const auto& parameter : parameters) {
    TORCH_CHECK_VALUE(
        !result || !parameter.tensor.requires_grad() || shard::ShardedStep::of(parameter.tensor),
        "parameter '", parameter.name,
        "' requires a gradient, but is not in the OSS that has the others: give it "
        "to it or freeze it");
  }
  return result;
}

void check_ranks(const comm::Group& world, const Nodes& nodes, const shard::ShardedStep& step) {
  constexpr const char* kWayOut =
      ", so nodes would never train apart: make the OSS over the ranks of a node";
  const int ranks = nodes.intra_node().size();
  TORCH_CHECK_VALUE(!step.mesh().has_replicas(),
                    "the OSS sums gradients with replicas (its mesh) in every step", kWayOut);
  TORCH_CHECK_VALUE(step.group().size() == ranks, "the OSS partitions parameters across ",
                    step.group().size(), " ranks, but a node has ", ranks, kWayOut);
  const at::Tensor all = at::empty({ranks}, at::kLong);
  comm::all_gather(step.group(), all, at::full({1}, world.rank(), at::kLong), "ranks of a node")
      .wait();
  for (int i = 0; i < ranks; ++i) {
    const int64_t expected = world.rank() / ranks * ranks + i;
    TORCH_CHECK_VALUE(all[i].item<int64_t>() == expected, "the OSS has rank ",
                      all[i].item<int64_t>(), " where this node has rank ", expected, kWayOut);
  }
}

}  // namespace

std::unique_ptr<ShardedNode> ShardedNode::find(const comm::Group& world, const Nodes& nodes,
                                               const std::vector<shard::Parameter>& parameters,
                                               int fragments) {
  const auto step = find_step(parameters);
  if (!step) {
    return nullptr;
  }
  check_ranks(world, nodes, *step);
  return std::unique_ptr<ShardedNode>(new ShardedNode(step, parameters, fragments));
}

ShardedNode::ShardedNode(const std::shared_ptr<shard::ShardedStep>& step,
                         const std::vector<shard::Parameter>& parameters, int fragments)
    : step_(step), group_(step->group()) {
  const Parameters selected = select_parameters(parameters);
  const auto numbers = fragments_of(selected, fragments);
  for (size_t i = 0; i < selected.size(); ++i) {
    const auto* const tensor = selected[i].tensor.unsafeGetTensorImpl();
    names_[tensor] = selected[i].name;
    fragments_[tensor] = numbers[i];
  }
}

std::shared_ptr<shard::ShardedStep> ShardedNode::step() const {
  auto step = step_.lock();
  TORCH_CHECK(step, "the OSS that had the parameters of nodes which train apart is gone");
  return step;
}

/// Of parameters that came later: the first, as for those of no OSS.
int64_t ShardedNode::fragment_of(const at::Tensor& parameter) const {
  const auto found = fragments_.find(parameter.unsafeGetTensorImpl());
  return found == fragments_.end() ? 0 : found->second;
}

bool ShardedNode::has_grown() const {
  const auto step = step_.lock();
  return step && taken_ < step->flat_groups().size();
}

std::vector<NodeSlice> ShardedNode::take_slices() {
  const auto step = this->step();
  step->freeze_layout();
  std::vector<NodeSlice> result;
  for (; taken_ < step->flat_groups().size(); ++taken_) {
    shard::FlatGroup& group = *step->flat_groups()[taken_];
    group.update_masters();
    for (const shard::Slice& slice : group.slices()) {
      const shard::Parameter& parameter = group.parameters()[slice.piece.parameter];
      const auto name = names_.find(parameter.tensor.unsafeGetTensorImpl());
      result.push_back({name == names_.end() ? parameter.name : name->second, slice.piece.begin,
                        slice.piece.end, slice.values, parameter.tensor,
                        fragment_of(parameter.tensor)});
    }
  }
  return result;
}

void ShardedNode::wait_for_values() const { step()->wait_for_parameters(); }

void ShardedNode::publish(const std::vector<int>& fragments) const {
  if (fragments.empty()) {
    return;
  }
  const auto step = this->step();
  for (const auto& group : step->flat_groups()) {
    // The last buckets hold the first layers, which the next forward needs first.
    for (size_t b = group->layout().buckets().size(); b-- > 0;) {
      const auto& slots = group->layout().buckets()[b].slots;
      if (std::any_of(slots.begin(), slots.end(), [&](const shard::Slot& slot) {
            const auto fragment = fragment_of(group->parameters()[slot.parameter].tensor);
            return std::find(fragments.begin(), fragments.end(), fragment) != fragments.end();
          })) {
        group->publish(b);
      }
    }
  }
  if (!step->options().overlap_gather()) {
    step->wait_for_parameters();
  }
}

void ShardedNode::publish() const {
  for (const auto& group : step()->flat_groups()) {
    group->start_gather();
    group->wait_for_values();
  }
}

}  // namespace fairshard::outer
