#include "network.h"

#include "within.h"
#include <fairshard/comm/interfaces.h>

#include <c10/util/StringUtil.h>

#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <fstream>

namespace fairshard::cli::doctor {
namespace {

/// A number that the kernel tells of an interface; -1 if it does not.
int64_t number_of(const std::string& interface, const char* what) {
  std::ifstream file("/sys/class/net/" + interface + "/" + what);
  int64_t number = -1;
  return file >> number && number > 0 ? number : -1;
}

void list_interfaces(Network& network) {
  for (const auto& each : comm::interface_addresses()) {
    network.interfaces.push_back({each.interface, each.address, each.is_loopback, each.is_up,
                                  number_of(each.interface, "speed"),
                                  number_of(each.interface, "mtu")});
  }
}

void resolve_host(Network& network, double limit_s) {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) {
    network.host = name.data();
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto resolved = within(limit_s, [host = network.host] { return comm::resolve(host); });
  network.resolve_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (resolved) {
    network.host_addresses = resolved->addresses;
    network.host_fault = resolved->fault;
  } else {
    network.host_fault = c10::str("no answer within ", limit_s, " s");
  }
}

void find_place(Network& network, bool is_one_machine, double limit_s) {
  const auto place =
      within(limit_s, [is_one_machine] { return comm::listening_place(is_one_machine); });
  if (place) {
    network.address = place->address;
    network.interface = place->interface;
    network.chosen_by = place->chosen_by;
    network.fault = place->fault;
  } else {
    network.fault = c10::str("the host name has no answer within ", limit_s, " s");
  }
}

void find_way_to_master(Network& network, double limit_s) {
  const auto look = [master = network.master] {
    const auto addresses = comm::resolve(master).addresses;
    return addresses.empty() ? std::string() : comm::source_address(addresses.front());
  };
  network.address_to_master = within(limit_s, look).value_or("");
}

}  // namespace

Network examine_network(const comm::Environment& environment, double limit_s) {
  Network network;
  list_interfaces(network);
  resolve_host(network, limit_s);
  find_place(network, environment.is_one_machine(), limit_s);
  if (network.master = environment.master_addr; !network.master.empty()) {
    find_way_to_master(network, limit_s);
  }
  return network;
}

}  // namespace fairshard::cli::doctor
