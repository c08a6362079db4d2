#pragma once
// Lets ranks that have run out of inputs take part in what the others still do.

#include <fairshard/comm/group.h>

#include <array>
#include <utility>

namespace fairshard::shard {

/// Before anything collective, a rank that still has inputs announces what it does; a rank that has
/// joined asks what the others do, and does its share of it. All costs one small reduction each.
class Join {
 public:
  /// What a rank may be about to do.
  enum class Action { kNothing, kForward, kReduce, kClip, kStep };

  using Details = std::array<double, 3>;

  /// What a rank says that it is about to do.
  struct Announcement {
    Action action = Action::kNothing;
    /// What a rank needs to know to do the same.
    Details details{};
    /// The lowest rank that still has inputs.
    int leader = 0;
  };

  explicit Join(comm::Group group) : group_(std::move(group)) {}

  /// Says what this rank does. Collective with the others' announce() and follow(). A rank that
  /// follows has nothing to say, and gets what it follows.
  Announcement announce(Action action, const Details& details = {});
  /// For ranks that have none left: what the others are about to do; nothing, when all have joined.
  Announcement follow();
  /// Whether this rank follows the others.
  bool is_following() const { return is_following_; }
  /// What was announced last, by any rank; its leader is -1 if nothing was.
  const Announcement& last() const { return last_; }

 private:
  Announcement exchange(const Announcement& own);

  comm::Group group_;
  bool is_following_ = false;
  Announcement last_{.leader = -1};
};

}  // namespace fairshard::shard
