#pragma once
// CheckpointBase: named parts of a run, saved by N ranks and loaded by M.

#include <fairshard/comm/group.h>
#include <fairshard/outer/nodes.h>
#include <fairshard/parts/part.h>
#include <fairshard/store/saver.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fairshard {

/// How many are kept, and how long ranks wait for each other.
using CheckpointOptions = store::SaverOptions;
using store::LoadReport;

/// What a Checkpoint does, whatever its parts are.
class CheckpointBase {
 public:
  /// Without a group: for one process alone. Local.
  CheckpointBase(std::optional<comm::Group> group, const std::string& directory,
                 const CheckpointOptions& options = {});

  /// Keys of a part begin with its name, so that names must not overlap.
  void add_part(const std::string& name, std::shared_ptr<CheckpointPart> part);
  /// Says that nodes differ: all parts are saved for each of them. Other numbers of nodes and ranks
  /// may load them: node m takes what node m modulo the number of nodes then had.
  void set_nodes(const outer::Nodes& nodes);

  /// Makes the folder and takes it for this run, as the first save does: throws at once if that is
  /// not possible, or if another run saves there.
  void claim() { saver_.claim(); }
  /// Returns when the checkpoint is complete.
  void save(int64_t step) { saver_.save(step, state()); }
  /// Returns when the state has been copied to host memory. The next save or wait() throws what
  /// the writing has met. Ending waits for what is under way, but only warns of what it has met.
  void save_async(int64_t step);
  /// Returns when no save is under way; throws what the last one has met.
  void wait() { saver_.wait(); }

  /// Loads the newest complete checkpoint; nothing if there is none at all. Throws if there are
  /// some but none can be used, and warns if a newer one is passed over. Parts of it that were not
  /// added are passed over. With `strict`, keys that are missing or too many are an error that
  /// names them. All of it is read and compared with its checksums before anything is changed, and
  /// all ranks load or none does. Collective over the groups of OSS's; blocks.
  std::optional<LoadReport> load(bool strict = true);
  /// Loads from the folder of one checkpoint.
  LoadReport load_from(const std::string& directory, bool strict = true);

 private:
  std::string prefix() const;
  std::string prefix_in(const store::Reader& reader) const;
  CheckpointContext describe(const std::string& prefix);
  store::State state();

  /// Among the ranks that have parts alike: all, or those of a node.
  int rank_;
  int ranks_;
  /// The number of this one, if nodes differ.
  std::optional<int> node_;
  store::Saver saver_;
  std::vector<std::pair<std::string, std::shared_ptr<CheckpointPart>>> parts_;
};

}  // namespace fairshard
