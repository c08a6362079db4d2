// Stands in for nccl_backend.cpp where torch was built without CUDA.
#include "backends.h"

#include <c10/util/Exception.h>

namespace fairshard::comm {

bool has_nccl() { return false; }

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                            std::chrono::milliseconds) {
  TORCH_CHECK(false, "this torch was built without NCCL");
}

}  // namespace fairshard::comm
