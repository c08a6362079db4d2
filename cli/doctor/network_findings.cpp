// Where ranks listen, and whether that is a place where others find them.
#include "findings.h"
#include "words.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace fairshard::cli::doctor {
namespace {

const Interface* interface_with(const Network& network, const std::string& address) {
  const auto found = std::ranges::find(network.interfaces, address, &Interface::address);
  return found == network.interfaces.end() ? nullptr : &*found;
}

bool are_in_one_network(const Measurements& measurements) {
  const auto& machines = measurements.machines;
  return std::ranges::all_of(machines, [&](const Machine& machine) {
    return machine.machine_id == machines.front().machine_id;
  });
}

bool listens_on_loopback(const Network& network) {
  const auto* const own = interface_with(network, network.address);
  return network.address.rfind("127.", 0) == 0 || (own && own->is_loopback);
}

/// The interface that leads to rank 0's machine; null if that is not known.
const Interface* way_to_master(const Network& network) {
  const auto* const way = interface_with(network, network.address_to_master);
  return way && !way->is_loopback ? way : nullptr;
}

bool is_unreached(const Measurements& measurements, int rank) {
  return std::ranges::any_of(measurements.links, [&](const comm::Link& link) {
    return link.to == rank && !link.fault.empty();
  });
}

/// It listens on one interface, and another one leads to the other ranks.
bool listens_aside(const Measurements& measurements, const Network& network) {
  const auto* const way = way_to_master(network);
  return way && !are_in_one_network(measurements) && way->name != network.interface;
}

std::string advice_on_interface(const Network& network) {
  const auto* const way = way_to_master(network);
  return way ? "set GLOO_SOCKET_IFNAME=" + way->name
             : "set GLOO_SOCKET_IFNAME to the interface that leads to the other machines";
}

std::string why_on_loopback(const Network& network) {
  const std::string end = ", which other machines do not reach";
  if (network.chosen_by == "GLOO_SOCKET_IFNAME") {
    return "GLOO_SOCKET_IFNAME is " + network.interface + ", the loopback interface" + end;
  }
  if (network.chosen_by == "one machine") {
    return "the launcher says that all ranks are on one machine, so the loopback interface was "
           "taken; but they are in several networks";
  }
  return network.chosen_by == "host name"
             ? c10::str("the host name ", network.host, " has the address ", network.address,
                        " of the loopback interface", end)
             : c10::str("the host name ", network.host, " has no address of this machine",
                        network.host_fault.empty() ? "" : " (" + network.host_fault + ")",
                        ": Gloo takes the loopback interface", end);
}

void find_place_of(const Measurements& measurements, const Machine& machine, Findings& found) {
  const auto& network = machine.network;
  if (!network.fault.empty()) {
    found.push_back(
        {Severity::kFails, "network", {machine.rank}, network.fault, advice_on_interface(network)});
  } else if (listens_on_loopback(network) && !are_in_one_network(measurements)) {
    const bool is_by_name = network.chosen_by == "host name" || network.chosen_by == "nothing";
    found.push_back({Severity::kFails,
                     "network",
                     {machine.rank},
                     why_on_loopback(network),
                     network.chosen_by == "one machine"
                         ? "start the ranks so that the launcher knows how many are on a machine"
                         : advice_on_interface(network) +
                               (is_by_name ? ", or give the name the machine's own address "
                                             "(/etc/hosts, DNS)"
                                           : "")});
  } else if (listens_aside(measurements, network)) {
    const bool fails = is_unreached(measurements, machine.rank);
    found.push_back({fails ? Severity::kFails : Severity::kNote,
                     "network",
                     {machine.rank},
                     c10::str("listens at ", network.address, " on ", network.interface, " (by ",
                              network.chosen_by, "), ",
                              fails ? "where other ranks do not reach it" : "where others reach it",
                              "; to MASTER_ADDR ", network.master, " it sends through ",
                              way_to_master(network)->name),
                     advice_on_interface(network)});
  }
}

void find_in_names(const Measurements& measurements, const Machine& machine, Findings& found) {
  constexpr double kSlow_s = 1;
  const auto& network = machine.network;
  if (network.resolve_s > kSlow_s) {
    found.push_back({Severity::kHurts,
                     "network",
                     {machine.rank},
                     c10::str("the host name ", network.host, " took ",
                              readable_delay(network.resolve_s), " to resolve: every start waits"),
                     "add it to /etc/hosts, or mend the name server (/etc/resolv.conf)"});
  } else if (!network.host_fault.empty() && network.chosen_by == "GLOO_SOCKET_IFNAME" &&
             !are_in_one_network(measurements)) {
    found.push_back({Severity::kNote,
                     "network",
                     {machine.rank},
                     c10::str("the host name ", network.host, " does not resolve (",
                              network.host_fault, "); GLOO_SOCKET_IFNAME makes up for it"),
                     "add it to /etc/hosts for what else asks"});
  }
}

void find_faster(const Measurements& measurements, const Machine& machine, Findings& found) {
  constexpr int64_t kMuch = 4;
  const auto* const own = interface_with(machine.network, machine.network.address);
  if (!own || own->is_loopback || own->mbit_per_s < 0 || are_in_one_network(measurements)) {
    return;
  }
  for (const auto& other : machine.network.interfaces) {
    if (other.is_up && !other.is_loopback && other.mbit_per_s >= kMuch * own->mbit_per_s) {
      found.push_back(
          {Severity::kNote,
           "network",
           {machine.rank},
           c10::str("listens on ", own->name, " (", own->mbit_per_s, " Mbit/s); ", other.name,
                    " has ", other.mbit_per_s, " Mbit/s"),
           c10::str("set GLOO_SOCKET_IFNAME=", other.name, " if it leads to the other machines")});
      return;
    }
  }
}

/// Packets of one end may be too long for the other.
void find_unequal_mtu(const Measurements& measurements, Findings& found) {
  Finding finding{Severity::kNote,
                  "network",
                  {},
                  "the interfaces that ranks listen on have MTUs of",
                  "the same MTU on all of them, and on what is between"};
  std::vector<int64_t> seen;
  for (const auto& machine : measurements.machines) {
    const auto* const own = interface_with(machine.network, machine.network.address);
    if (own && !own->is_loopback && own->mtu > 0) {
      finding.ranks.push_back(machine.rank);
      if (std::ranges::find(seen, own->mtu) == seen.end()) {
        seen.push_back(own->mtu);
        finding.seen += c10::str(seen.size() > 1 ? ", " : " ", own->mtu);
      }
    }
  }
  if (seen.size() > 1) {
    found.push_back(finding);
  }
}

}  // namespace

bool is_misplaced(const Measurements& measurements, const Machine& machine) {
  const auto& network = machine.network;
  return !network.fault.empty() ||
         (listens_on_loopback(network) && !are_in_one_network(measurements)) ||
         (listens_aside(measurements, network) && is_unreached(measurements, machine.rank));
}

Findings find_in_network(const Measurements& measurements) {
  Findings found;
  for (const auto& machine : measurements.machines) {
    find_place_of(measurements, machine, found);
    find_in_names(measurements, machine, found);
    find_faster(measurements, machine, found);
  }
  find_unequal_mtu(measurements, found);
  return found;
}

}  // namespace fairshard::cli::doctor
