#include "examination.h"

#include "json.h"
#include "machine.h"
#include "store_text.h"
#include <fairshard/comm/await_keys.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <utility>

namespace fairshard::cli::doctor {
namespace {

class Examination {
 public:
  Examination(c10::intrusive_ptr<c10d::Store> store, const comm::Environment& environment,
              const DoctorOptions& options)
      : store_(std::move(store)), environment_(environment), options_(options) {}

  int run(const std::function<int(const Measurements&)>& judge) {
    Machine machine = examine_machine(environment_, options_.save, options_.answer_s);
    // Links are measured while nobody writes to a disk or waits for a resolver.
    begin_together();
    const comm::Probe probe = comm::probe_links(store_, environment_.rank, environment_.world_size,
                                                machine.network.address, options_.probe());
    machine.unheard_by = probe.unheard_by;
    put_text(store_, key("links", environment_.rank), to_text(probe.links));
    put_text(store_, key("machine", environment_.rank), to_text(machine));
    return environment_.rank == 0 ? conclude(judge) : await_status();
  }

 private:
  std::string key(const std::string& name, int rank) const { return c10::str(name, "/", rank); }
  void set(const std::string& name, const std::string& value) {
    store_->set(key(name, environment_.rank), value);
  }

  std::vector<std::string> keys_of_all(const std::string& name) const {
    std::vector<std::string> keys;
    for (int rank = 0; rank < environment_.world_size; ++rank) {
      keys.push_back(key(name, rank));
    }
    return keys;
  }

  void begin_together() {
    set("ready", "1");
    if (environment_.rank == 0) {
      // Whoever does not come is missing in what follows, which says so.
      comm::await_keys(store_, keys_of_all("ready"), options_.timeout_s);
      store_->set("begin", "1");
    } else {
      require("begin", 2 * options_.timeout_s);
    }
  }

  void require(const std::string& wanted, double seconds) const {
    if (!comm::await_keys(store_, {wanted}, seconds)) {
      C10_THROW_ERROR(DistStoreError, c10::str("rank 0 has not answered within ", seconds,
                                               " s: it has ended or hangs"));
    }
  }

  int conclude(const std::function<int(const Measurements&)>& judge) {
    Measurements measurements;
    measurements.ranks = environment_.world_size;
    comm::await_keys(store_, keys_of_all("machine"), 4 * options_.answer_s);
    for (int rank = 0; rank < environment_.world_size; ++rank) {
      if (store_->check({key("machine", rank)})) {
        measurements.machines.push_back(machine_from(get_text(store_, key("machine", rank))));
        const auto links = links_from(get_text(store_, key("links", rank)));
        measurements.links.insert(measurements.links.end(), links.begin(), links.end());
      }
    }
    const int status = judge(measurements);
    store_->set("status", std::to_string(status));
    // This rank may serve the store: the others take the status from it first.
    set("done", "1");
    comm::await_keys(store_, keys_of_all("done"), options_.answer_s);
    return status;
  }

  int await_status() {
    require("status", options_.timeout_s + 8 * options_.answer_s);
    const int status = std::stoi(store_->get_to_str("status"));
    set("done", "1");
    return status;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  const comm::Environment& environment_;
  const DoctorOptions& options_;
};

}  // namespace

comm::ProbeOptions DoctorOptions::probe() const {
  return comm::ProbeOptions().answer_s(answer_s).transfers_s(seconds).transfer_bytes(
      std::max<int64_t>(1, static_cast<int64_t>(megabytes * 1e6)));
}

int examine(const c10::intrusive_ptr<c10d::Store>& store, const comm::Environment& environment,
            const DoctorOptions& options, const std::function<int(const Measurements&)>& judge) {
  return Examination(store, environment, options).run(judge);
}

}  // namespace fairshard::cli::doctor
