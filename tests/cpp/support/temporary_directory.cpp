#include "support/temporary_directory.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <filesystem>

namespace fairshard::test {

TemporaryDirectory::TemporaryDirectory() {
  std::string name = std::filesystem::temp_directory_path() / "fairshard-test-XXXXXX";
  TORCH_CHECK(mkdtemp(name.data()), "cannot make ", name);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace fairshard::test
