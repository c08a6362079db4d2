#include "folders.h"

#include <fairshard/store/directory.h>

#include <c10/util/Exception.h>

#include <unistd.h>

namespace fairshard::cli {

std::string find_checkpoint(const std::string& folder) {
  if (access((folder + "/manifest.json").c_str(), F_OK) == 0) {
    return folder;
  }
  const auto newest = store::latest_checkpoint(folder);
  TORCH_CHECK_VALUE(newest, folder, ": there is no complete checkpoint");
  return *newest;
}

}  // namespace fairshard::cli
