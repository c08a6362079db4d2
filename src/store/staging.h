#pragma once
// How a checkpoint comes into being: under a temporary name that nobody reads, then renamed.

#include <fairshard/store/manifest.h>

#include <cstdint>
#include <string>

namespace fairshard::store {

constexpr const char* kManifestName = "manifest.json";
constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

/// A checkpoint that is being written. The functions are for rank 0; others only need the path.
class Staging {
 public:
  Staging(std::string root, int64_t step);

  /// The temporary folder.
  const std::string& path() const { return path_; }
  /// Makes it, and removes what earlier attempts have left behind.
  void make() const;
  /// Writes the manifest, flushes everything to disk and gives the folder its name. From here on
  /// it is the newest checkpoint. One of the same step is replaced.
  void publish(const Manifest& manifest) const;
  /// How much the ranks have written so far.
  int64_t written_bytes() const;
  /// Removes it, as far as that is possible.
  void discard() const noexcept;

 private:
  std::string root_;
  int64_t step_;
  std::string path_;
};

/// Of the checkpoints up to the one of step `newest`, removes all but the last `keep`; 0 keeps all.
void prune(const std::string& root, int64_t keep, int64_t newest);

/// Reads the manifest of a folder.
Manifest read_manifest(const std::string& directory);

}  // namespace fairshard::store
