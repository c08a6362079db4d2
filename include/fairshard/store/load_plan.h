#pragma once
// What is to be loaded: all of it is looked at before any of it is taken, so that a checkpoint that
// does not fit changes nothing.

#include <fairshard/store/reader.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace fairshard::store {

/// What did not fit, by key.
struct LoadReport {
  int64_t step = 0;
  /// Asked for, but not in the checkpoint.
  std::vector<std::string> missing;
  /// In a part of the checkpoint that was asked for, but not asked for themselves.
  std::vector<std::string> unexpected;
};

/// Collects requests, then carries them out, one tensor at a time. Local.
class LoadPlan {
 public:
  /// Gets the elements of a range, in host memory.
  using Take = std::function<void(const at::Tensor& values)>;
  using TakeValue = std::function<void(const std::string& json)>;

  LoadPlan(Reader& reader, int rank = 0, int ranks = 1);

  const Reader& reader() const { return reader_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  /// Says that keys "part/..." which nobody asks for are unexpected.
  void add_part(const std::string& part);
  /// A range of a tensor, for a tensor of this layout.
  void add_range(const std::string& key, const Layout& layout, int64_t begin, int64_t end,
                 Take take);
  /// All of a tensor, copied into `target`, which may have any strides, dtype and device.
  void add_tensor(const std::string& key, const at::Tensor& target);
  /// A tensor whose form is not known before: as it is stored, row-major.
  void add_any(const std::string& key, Take take);
  void add_value(const std::string& key, TakeValue take);
  /// The same, but nothing is missing if it is not there.
  void add_optional_value(const std::string& key, TakeValue take);
  /// Counts a key as asked for, and says whether it is there.
  bool expects(const std::string& key);
  /// Counts all keys that begin so as asked for.
  void expects_under(const std::string& prefix);
  /// To be done when everything has been taken.
  void then(std::function<void()> action);

  /// Throws c10::ValueError with all keys that are missing, unexpected or of other sizes; with
  /// `strict` false, missing and unexpected ones are only reported. Then reads all that is asked
  /// for and compares its checksums. Nothing is taken yet.
  LoadReport check(bool strict = true);
  /// Takes everything. To be called after check().
  void take();
  /// Does what was left for the end, which may be collective. To be called after take().
  void finish();
  /// All three. Where there are several ranks, they agree after each of the first two, so that all
  /// load or none does; see Saver::together().
  LoadReport run(bool strict = true);

 private:
  /// Something to be taken.
  struct Request {
    /// Throws if the file is damaged there.
    std::function<void()> check;
    std::function<void()> take;
  };

  LoadReport compare() const;

  Reader& reader_;
  int rank_;
  int ranks_;
  std::vector<std::string> parts_;
  std::set<std::string> expected_;
  std::vector<std::string> missing_;
  std::vector<std::string> misfits_;
  std::vector<Request> requests_;
  std::vector<std::function<void()>> actions_;
};

}  // namespace fairshard::store
