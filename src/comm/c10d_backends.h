#pragma once
// c10d's own backends, each made in a file of its own, because their headers are large.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace fairshard::comm {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// `bind` is the address or, with a leading '@', the interface to listen on; empty: by hostname.
BackendPtr make_gloo(const StorePtr& store, int rank, int size, const std::string& bind,
                     std::chrono::milliseconds timeout);
BackendPtr make_nccl(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout);
/// Whether torch was built with NCCL; else make_nccl() throws.
bool has_nccl();

}  // namespace fairshard::comm
