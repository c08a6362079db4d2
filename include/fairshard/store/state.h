#pragma once
// What is to be saved, whoever it belongs to: named tensors or ranges of them, and small values.

#include <fairshard/store/manifest.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fairshard::store {

/// The form of a tensor as it is.
Layout layout_of(const at::Tensor& tensor);

/// Elements of a dense tensor in the order of memory, as a flat view.
at::Tensor memory_view(const at::Tensor& tensor);

/// Collects a rank's share of a checkpoint. All ranks add the same keys in the same order, except
/// where it says "own". Tensors are not copied: they stay as they are until they are saved. Local.
///
/// Keys are "part/name", for instance "model/0.weight" or "optimizer/0.weight/exp_avg".
class State {
 public:
  /// A tensor, or a range of one, under its key.
  struct Entry {
    std::string key;
    Layout layout;
    int64_t begin = 0;
    int64_t end = 0;
    /// The elements from begin to end, flat and dense; asked for when they are written.
    std::function<at::Tensor()> values;
  };

  explicit State(int rank = 0, int ranks = 1);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  /// Says that all ranks save a part of this name. Ranks whose parts differ do not save: a part
  /// that only some have would be lost without a word.
  void add_part(const std::string& name) { parts_.push_back(name); }
  /// A tensor that all ranks have alike. It is written once: a large one by all ranks, each its
  /// even range, so that they share the work whatever the sizes are; a small one by the rank that
  /// has had least of these so far, so that there are not many tiny pieces.
  void add_alike(const std::string& key, const at::Tensor& tensor);
  /// A tensor of which rank 0's is saved, though others may differ.
  void add_first(const std::string& key, const at::Tensor& tensor);
  /// The elements from begin to end of a tensor of which other ranks have the rest; `values` has so
  /// many elements, without gaps, in the order of the whole tensor's memory. Only for ranks that
  /// have a part.
  void add_range(const std::string& key, const Layout& whole, int64_t begin, int64_t end,
                 const at::Tensor& values);
  /// A tensor that only ranks which call this have; one of them for each key.
  void add_whole(const std::string& key, const at::Tensor& tensor);
  /// A small value, as JSON text. Rank 0's is saved.
  void add_value(const std::string& key, const std::string& json);
  /// A value that only ranks which call this have; one of them for each key.
  void add_own_value(const std::string& key, const std::string& json);

  const std::vector<std::string>& parts() const { return parts_; }
  const std::vector<Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& values() const { return values_; }
  /// Replaces tensors by what `copy` makes of them, to be saved while the originals change.
  void replace(const std::function<at::Tensor(const Entry& entry)>& copy);

 private:
  int rank_;
  int ranks_;
  /// Bytes of small tensors that each rank has so far.
  std::vector<int64_t> loads_;
  std::vector<std::string> parts_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> values_;
};

/// What the keys of a node begin with, if nodes differ: "node-00002/".
std::string node_prefix(int node);
/// How many nodes have saved keys of their own.
int count_nodes(const Manifest& manifest);

/// "part/rank-00003/name": the key of something that belongs to one rank.
std::string own_key(const std::string& part, int rank, const std::string& name);

}  // namespace fairshard::store
