#pragma once
// An OSS's state in the form of a plain optimizer's, and back.

#include <fairshard/optim/oss.h>

#include <torch/optim/optimizer.h>

namespace fairshard {

/// Gives a plain optimizer of the same kind the options of an OSS and, on rank `root`, its whole
/// state: what it would have if it had made the steps, to torch::save it or to go on without
/// sharding. `whole` has as many groups with as many parameters of the same shapes; its class may
/// be torch's where the OSS's is fairshard's, and the other way round. Refuses master weights,
/// which plain optimizers do not have. One bucket and field is gathered at a time. A Checkpoint
/// gathers nothing. Collective; blocks.
void consolidate_state(OssBase& sharded, torch::optim::Optimizer& whole, int root = 0);

/// The other way round: takes the options of a plain optimizer and this rank's share of its state.
/// All ranks have the same in `whole`. Local.
void load_state(OssBase& sharded, torch::optim::Optimizer& whole);

}  // namespace fairshard
