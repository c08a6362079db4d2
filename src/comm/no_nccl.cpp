// Stands in for nccl_backend.cpp where torch was built without CUDA.
#include "c10d_backends.h"

#include <c10/util/Exception.h>

namespace fairshard::comm {

bool has_nccl() { return false; }

BackendPtr make_nccl(const StorePtr&, int, int, std::chrono::milliseconds) {
  TORCH_CHECK(false, "this torch was built without NCCL");
}

}  // namespace fairshard::comm
