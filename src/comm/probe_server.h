#pragma once
// The end of a probed link that is called: it answers, counts what comes, and tells how quickly.

#include <cstdint>
#include <set>
#include <string>
#include <thread>

namespace fairshard::comm {

/// Listens at an address, at a port that the system chooses, and answers from a thread of its own
/// for as long as it lives.
class ProbeServer {
 public:
  /// Throws c10::DistNetworkError if nobody can listen there. `secret` is what callers must know.
  ProbeServer(const std::string& address, int rank, uint64_t secret);
  ~ProbeServer();
  ProbeServer(const ProbeServer&) = delete;
  ProbeServer& operator=(const ProbeServer&) = delete;

  int port() const { return port_; }

  /// Addresses whose calls have come here and were answered, but which go on as if there was no
  /// answer: as of now.
  std::set<std::string> unheard_by() const;

 private:
  void answer_all();

  int rank_;
  uint64_t secret_;
  int port_ = 0;
  int listening_;
  int wake_;
  std::thread thread_;
};

}  // namespace fairshard::comm
