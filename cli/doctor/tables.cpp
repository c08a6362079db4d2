#include "tables.h"

#include "../table.h"
#include "words.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

namespace fairshard::cli::doctor {
namespace {

using comm::Link;

/// More columns than this fit no terminal.
constexpr int kWidest = 12;
constexpr size_t kWorst = 10;

void print_topic(const std::string& topic, const std::vector<Row>& rows, std::ostream& out,
                 Align align = Align::kLeft) {
  out << "\n" << topic << "\n";
  print_table(rows, out, align);
}

/// Ranks of which the rest of the row is the same have one.
std::vector<Row> merged(const std::vector<Row>& rows) {
  std::vector<Row> result{rows.front()};
  result[0][0] = "ranks";
  std::vector<std::vector<int>> ranks(1);
  for (size_t i = 1; i < rows.size(); ++i) {
    const auto same = std::ranges::find_if(result, [&](const Row& row) {
      return std::equal(row.begin() + 1, row.end(), rows[i].begin() + 1);
    });
    const auto place = static_cast<size_t>(same - result.begin());
    if (same == result.end()) {
      result.push_back(rows[i]);
      ranks.emplace_back();
    }
    ranks[place].push_back(std::stoi(rows[i][0]));
    result[place][0] = ranges(ranks[place]);
  }
  return result;
}

void print_network(const Measurements& measurements, std::ostream& out) {
  std::vector<Row> rows{
      {"rank", "host", "its addresses", "listens at", "on", "chosen by", "there are"}};
  for (const auto& machine : measurements.machines) {
    const auto& network = machine.network;
    std::string addresses;
    for (const auto& address : network.host_addresses) {
      addresses += (addresses.empty() ? "" : " ") + address;
    }
    std::string others;
    for (const auto& each : network.interfaces) {
      // Those that a machine gives itself lead nowhere.
      if (each.address.rfind("fe80:", 0) != 0) {
        others += c10::str(others.empty() ? "" : " ", each.name, "=", each.address,
                           each.is_up ? "" : "(down)");
      }
    }
    rows.push_back({std::to_string(machine.rank), network.host,
                    addresses.empty() ? "none" : addresses,
                    network.address.empty() ? "nowhere" : network.address, network.interface,
                    network.chosen_by, others});
  }
  print_topic("network", merged(rows), out);
}

/// A transfer may have been too short to tell.
std::string rate_or_unknown(double bytes_per_s) {
  return bytes_per_s > 0 ? readable_rate(bytes_per_s) : "?";
}

using Cell = std::function<std::string(const Link&)>;

/// From the rank of the row to that of the column.
void print_matrix(const std::string& topic, const Measurements& measurements, const Cell& cell,
                  std::ostream& out) {
  std::vector<Row> rows{{"from \\ to"}};
  for (int to = 0; to < measurements.ranks; ++to) {
    rows[0].push_back(std::to_string(to));
  }
  for (int from = 0; from < measurements.ranks; ++from) {
    Row row(measurements.ranks + 1, "-");
    row[0] = std::to_string(from);
    for (const auto& link : measurements.links) {
      if (link.from == from) {
        row[link.to + 1] = link.fault.empty() ? cell(link) : "fails";
      }
    }
    rows.push_back(row);
  }
  print_topic(topic, rows, out, Align::kRight);
}

/// Of many links only the worst.
void print_worst(const Measurements& measurements, std::ostream& out) {
  std::vector<Link> links = measurements.links;
  std::ranges::sort(
      links, {}, [](const Link& link) { return std::pair(link.fault.empty(), link.bytes_per_s); });
  links.resize(std::min(links.size(), kWorst));
  std::vector<Row> rows{{"from", "to", "latency", "alone", "all at once"}};
  for (const auto& link : links) {
    const bool is_good = link.fault.empty();
    rows.push_back({std::to_string(link.from), std::to_string(link.to),
                    is_good ? readable_delay(link.latency_s) : "fails",
                    is_good ? rate_or_unknown(link.bytes_per_s) : "-",
                    is_good ? rate_or_unknown(link.together_bytes_per_s) : "-"});
  }
  print_topic(c10::str("links: the slowest of ", measurements.links.size()), rows, out,
              Align::kRight);
}

void print_links(const Measurements& measurements, std::ostream& out) {
  if (measurements.ranks > kWidest) {
    return print_worst(measurements, out);
  }
  print_matrix(
      "links: latency, one way", measurements,
      [](const Link& link) { return readable_delay(link.latency_s); }, out);
  print_matrix(
      "links: one pair at a time", measurements,
      [](const Link& link) { return rate_or_unknown(link.bytes_per_s); }, out);
  print_matrix(
      "links: all pairs at once", measurements,
      [](const Link& link) { return rate_or_unknown(link.together_bytes_per_s); }, out);
}

void print_clocks(const Measurements& measurements, std::ostream& out) {
  std::vector<Row> rows{{"rank", "is ahead of rank 0's by", "or more or less"}};
  for (const auto& link : measurements.links) {
    if (link.from == 0 && link.latency_s > 0) {
      rows.push_back(
          {std::to_string(link.to),
           (link.clock_offset_s < 0 ? "-" : "") + readable_delay(std::abs(link.clock_offset_s)),
           readable_delay(link.clock_error_s)});
    }
  }
  print_topic("clocks", rows, out);
}

void print_machines(const Measurements& measurements, std::ostream& out) {
  std::vector<Row> cores{{"rank", "cores", "cgroup's", "OMP_NUM_THREADS", "threads"}};
  std::vector<Row> memory{
      {"rank", "total", "available", "cgroup's", "/dev/shm", "free", "may lock", "open files"}};
  for (const auto& machine : measurements.machines) {
    const std::string rank = std::to_string(machine.rank);
    const auto& own = machine.cores;
    cores.push_back({rank, own.allowed.empty() ? "?" : ranges(own.allowed),
                     own.quota < 0 ? "all" : with_digits(own.quota, 1),
                     own.omp_num_threads.empty() ? "not set" : own.omp_num_threads,
                     std::to_string(own.threads)});
    const auto& has = machine.memory;
    memory.push_back({rank, bytes_or(has.total, "?"), bytes_or(has.available, "?"),
                      bytes_or(has.cgroup_limit, "all"), bytes_or(has.shared_total, "none"),
                      bytes_or(has.shared_free, "none"), bytes_or(has.locked_limit, "all"),
                      has.open_files < 0 ? "any" : std::to_string(has.open_files)});
  }
  print_topic("cores", merged(cores), out);
  print_topic("memory and limits", merged(memory), out);
}

void print_disks(const Measurements& measurements, std::ostream& out) {
  std::vector<Row> rows{{"rank", "--save", "free", "write and fsync"}};
  for (const auto& machine : measurements.machines) {
    const auto& disk = machine.disk;
    if (!disk.folder.empty()) {
      rows.push_back({std::to_string(machine.rank), disk.folder, bytes_or(disk.free, "?"),
                      !disk.fault.empty() ? "fails"
                      : disk.written == 0 ? "by another rank"
                                          : c10::str(with_unit(disk.bytes_per_s / 1e6, "MB/s"),
                                                     " (", bytes_or(disk.written, ""), ")")});
    }
  }
  if (rows.size() > 1) {
    print_topic("disk", merged(rows), out);
  } else {
    out << "\ndisk\nnot measured: --save DIR says where checkpoints go\n";
  }
}

void print_gpus(const Measurements& measurements, std::ostream& out) {
  std::vector<Row> rows{{"rank", "GPU", "is", "at", "reaches"}};
  for (const auto& machine : measurements.machines) {
    for (size_t i = 0; i < machine.gpus.size(); ++i) {
      const auto& gpu = machine.gpus[i];
      rows.push_back({std::to_string(machine.rank), std::to_string(i), gpu.name, gpu.bus_id,
                      gpu.peers.empty() ? "none" : ranges(gpu.peers)});
    }
  }
  if (rows.size() > 1) {
    print_topic("GPUs", merged(rows), out);
  } else {
    out << "\nGPUs\nnone\n";
  }
}

void print_versions(const Measurements& measurements, std::ostream& out) {
  std::vector<Row> rows{{"rank", "fairshard", "torch", "compiler", "kernel", "Python"}};
  for (const auto& machine : measurements.machines) {
    const auto& own = machine.versions;
    rows.push_back({std::to_string(machine.rank), own.fairshard, own.torch, own.compiler,
                    own.kernel, own.python.empty() ? "-" : own.python});
  }
  print_topic("versions", merged(rows), out);
}

void print_findings(const Findings& findings, std::ostream& out) {
  out << "\nverdict: ";
  if (findings.empty()) {
    out << "fine\n";
    return;
  }
  out << (is_fine(findings) ? "fine, with notes\n" : "there is something to change\n");
  for (const auto& finding : findings) {
    out << name_of(finding.severity) << "  " << ranks_text(finding.ranks) << " (" << finding.topic
        << "): " << finding.seen << "\n       " << finding.change << "\n";
  }
}

}  // namespace

void print_report(const Measurements& measurements, const Findings& findings, std::ostream& out) {
  std::set<std::string> machines;
  for (const auto& machine : measurements.machines) {
    machines.insert(machine.machine_id);
  }
  out << measurements.ranks << " rank(s) on " << machines.size() << " machine(s)";
  if (!measurements.machines.empty()) {
    out << ", started by " << measurements.machines.front().origin;
  }
  out << "\n";
  print_network(measurements, out);
  if (measurements.ranks > 1) {
    print_links(measurements, out);
    print_clocks(measurements, out);
  }
  print_machines(measurements, out);
  print_disks(measurements, out);
  print_gpus(measurements, out);
  print_versions(measurements, out);
  print_findings(findings, out);
}

}  // namespace fairshard::cli::doctor
