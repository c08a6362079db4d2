#include <fairshard/comm/collectives.h>
#include <fairshard/shard/join.h>

#include <ATen/ops/tensor.h>

namespace fairshard::shard {

Join::Announcement Join::announce(Action action, const Details& details) {
  return is_following_ ? last_ : exchange({action, details, group_.rank()});
}

Join::Announcement Join::follow() {
  is_following_ = true;
  return exchange({});
}

Join::Announcement Join::exchange(const Announcement& own) {
  // The largest of each: ranks that follow have zeros, and the others say the same, except that
  // the lowest of them leads.
  const bool is_active = own.action != Action::kNothing;
  const at::Tensor words =
      at::tensor({static_cast<double>(own.action), own.details[0], own.details[1], own.details[2],
                  is_active ? static_cast<double>(group_.size() - group_.rank()) : 0.0},
                 at::kDouble);
  comm::all_reduce(group_, words, comm::ReduceOp::kMax, "join").wait();
  const auto* const values = words.const_data_ptr<double>();
  const auto action = static_cast<Action>(static_cast<int>(values[0]));
  const int leader = group_.size() - static_cast<int>(values[4]);
  const Announcement said{action, {values[1], values[2], values[3]}, leader};
  if (action != Action::kNothing) {
    last_ = said;
  }
  return said;
}

}  // namespace fairshard::shard
