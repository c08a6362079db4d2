// Links that are not there, and links that are slow.
#include "findings.h"
#include "words.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

namespace fairshard::cli::doctor {
namespace {

using comm::Link;

/// Below this part of what others reach, a link is slow.
constexpr double kSlow = 0.5;

const Link* link_of(const Measurements& measurements, int from, int to) {
  const auto found = std::ranges::find_if(
      measurements.links, [&](const Link& link) { return link.from == from && link.to == to; });
  return found == measurements.links.end() ? nullptr : &*found;
}

bool is_faulty(const Link* link) { return link && !link->fault.empty(); }

/// Whether it has gone wrong later than when the ranks called each other.
bool has_broken(const Link& link) { return link.connect_s > 0 && !link.fault.empty(); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// "rank 1 is at 10.0.0.2 on eth0"
std::string whereabouts(const Measurements& measurements, int rank) {
  const auto& network = machine_of(measurements, rank)->network;
  return c10::str("rank ", rank, " is at ", network.address, " on ", network.interface);
}

/// Which of two directions is to blame: a rank that has got a call, and whose answer was lost.
std::string lost_direction(const Measurements& measurements, int from, int to) {
  const auto& unheard = machine_of(measurements, from)->unheard_by;
  const bool is_lost =
      std::ranges::find(unheard, machine_of(measurements, to)->network.address) != unheard.end();
  return is_lost ? c10::str("; rank ", from, " has got the call of rank ", to,
                            ", so it is what rank ", from, " sends to rank ", to, " that is lost")
                 : "";
}

Finding missing_link(const Measurements& measurements, const Link* there, const Link* back) {
  const bool both = is_faulty(there) && is_faulty(back);
  const Link& link = is_faulty(there) ? *there : *back;
  const auto [from, to] = std::pair(link.from, link.to);
  std::string seen = both ? c10::str("ranks ", from, " and ", to, " could not connect: ")
                          : c10::str("rank ", from, " could not connect to rank ", to, ": ");
  seen += link.fault + (both ? "; " + back->fault : "") + "; " + whereabouts(measurements, from) +
          ", " + whereabouts(measurements, to) + lost_direction(measurements, from, to) +
          lost_direction(measurements, to, from);
  return {Severity::kFails,
          "links",
          {from, to},
          seen,
          "let TCP pass between these addresses, at all ports and both ways (firewall, security "
          "group, routes), or name an interface that does with GLOO_SOCKET_IFNAME"};
}

Finding broken_link(const Link& link) {
  const std::vector<int> ranks{link.from, link.to};
  if (link.fault.rfind("not measured", 0) == 0) {
    return {Severity::kNote, "links", ranks,
            c10::str("rank ", link.from, " -> rank ", link.to, ": ", link.fault),
            "mend what took the time, or give more of it (--answer-s)"};
  }
  // Short messages have come through.
  const bool lacks_long_ones = link.latency_s > 0 && link.bytes_per_s == 0;
  return {Severity::kFails, "links", ranks, link.fault,
          lacks_long_ones ? "long packets are lost: give all interfaces, and what is between them, "
                            "the same MTU, and let ICMP pass"
                          : "the connection was there and has broken off: look at the link, and "
                            "at whether the rank is still there"};
}

/// Ranks that say why nobody reaches them, or say nothing at all.
std::set<int> find_explained(const Measurements& measurements, Findings& found) {
  std::set<int> explained;
  for (int rank = 0; rank < measurements.ranks; ++rank) {
    const auto* const machine = machine_of(measurements, rank);
    if (!machine) {
      found.push_back({Severity::kFails,
                       "ranks",
                       {rank},
                       "has met the others, and then has not answered: it has ended or hangs",
                       "look at what it has written, and at its machine"});
    }
    if (!machine || is_misplaced(measurements, *machine)) {
      explained.insert(rank);
    }
  }
  return explained;
}

void find_missing(const Measurements& measurements, Findings& found) {
  std::set<int> explained = find_explained(measurements, found);
  const auto is_cut = [&](int a, int b) {
    const auto* const there = link_of(measurements, a, b);
    const auto* const back = link_of(measurements, b, a);
    return (is_faulty(there) && !has_broken(*there)) || (is_faulty(back) && !has_broken(*back));
  };
  // A rank that no other reaches is one finding, and not one for each.
  for (int rank = 0; rank < measurements.ranks; ++rank) {
    std::vector<int> others;
    for (int other = 0; other < measurements.ranks; ++other) {
      if (other != rank && !explained.contains(other)) {
        others.push_back(other);
      }
    }
    const bool is_alone =
        !explained.contains(rank) && others.size() > 1 &&
        std::ranges::all_of(others, [&](int other) { return is_cut(rank, other); });
    if (is_alone) {
      Finding finding = missing_link(measurements, link_of(measurements, rank, others.front()),
                                     link_of(measurements, others.front(), rank));
      finding.ranks = {rank};
      finding.seen = c10::str("rank ", rank,
                              " could not connect to any other; so for instance: ", finding.seen);
      found.push_back(finding);
      explained.insert(rank);
    }
  }
  for (int a = 0; a < measurements.ranks; ++a) {
    for (int b = a + 1; b < measurements.ranks; ++b) {
      if (is_cut(a, b) && !explained.contains(a) && !explained.contains(b)) {
        found.push_back(
            missing_link(measurements, link_of(measurements, a, b), link_of(measurements, b, a)));
      }
    }
  }
  for (const auto& link : measurements.links) {
    if (has_broken(link) && machine_of(measurements, link.to)) {
      found.push_back(broken_link(link));
    }
  }
}

/// Good links between machines, as far as they could be measured: what the ranks of one have is
/// memory.
std::vector<const Link*> links_between_machines(const Measurements& measurements) {
  std::vector<const Link*> result;
  for (const auto& link : measurements.links) {
    const auto* const from = machine_of(measurements, link.from);
    const auto* const to = machine_of(measurements, link.to);
    const bool is_known = link.fault.empty() && link.bytes_per_s > 0;
    if (is_known && from && to && from->machine_id != to->machine_id) {
      result.push_back(&link);
    }
  }
  return result;
}

/// A measure of links of which some are much worse than the median of the others.
struct Comparison {
  const Measurements& measurements;
  std::vector<const Link*> links;
  std::function<double(const Link&)> value;
  std::function<bool(double value, double others)> is_bad;
  std::string (*readable)(double);
  /// "is", "takes"
  const char* verb;
  std::string change;
};

double median_of_others(const Comparison& comparison, const std::set<const Link*>& these) {
  std::vector<double> values;
  for (const Link* const link : comparison.links) {
    if (!these.contains(link)) {
      values.push_back(comparison.value(*link));
    }
  }
  return values.empty() ? -1 : median(values);
}

std::set<const Link*> bad_links(const Comparison& comparison) {
  std::set<const Link*> bad;
  for (const Link* const link : comparison.links) {
    const double others = median_of_others(comparison, {link});
    if (others >= 0 && comparison.is_bad(comparison.value(*link), others)) {
      bad.insert(link);
    }
  }
  return bad;
}

/// A rank of which all links in a direction are bad, which are taken out of `left`.
void find_bad_ranks(const Comparison& comparison, int Link::*end, const char* direction,
                    std::set<const Link*>& left, double others, Findings& found) {
  for (int rank = 0; rank < comparison.measurements.ranks; ++rank) {
    std::vector<const Link*> own;
    for (const Link* const link : comparison.links) {
      if (link->*end == rank) {
        own.push_back(link);
      }
    }
    const bool all_bad = own.size() > 1 && own.size() < comparison.links.size() &&
                         std::ranges::all_of(own, [&](auto* link) { return left.contains(link); });
    if (all_bad) {
      std::vector<double> values;
      for (const Link* const link : own) {
        values.push_back(comparison.value(*link));
        left.erase(link);
      }
      found.push_back({Severity::kHurts,
                       "links",
                       {rank},
                       c10::str("rank ", rank, direction, " every other rank ", comparison.verb,
                                " ", comparison.readable(median(values)), ", the other pairs ",
                                comparison.readable(others)),
                       comparison.change});
    }
  }
}

void compare(const Comparison& comparison, Findings& found) {
  std::set<const Link*> bad = bad_links(comparison);
  const double others = median_of_others(comparison, bad);
  find_bad_ranks(comparison, &Link::from, " ->", bad, others, found);
  find_bad_ranks(comparison, &Link::to, " <-", bad, others, found);
  for (const Link* const link : comparison.links) {
    if (bad.contains(link)) {
      found.push_back({Severity::kHurts,
                       "links",
                       {link->from, link->to},
                       c10::str("rank ", link->from, " -> rank ", link->to, " ", comparison.verb,
                                " ", comparison.readable(comparison.value(*link)),
                                ", the other pairs ", comparison.readable(others)),
                       comparison.change});
    }
  }
}

void find_slow(const Measurements& measurements, Findings& found) {
  const auto links = links_between_machines(measurements);
  compare({measurements, links, [](const Link& link) { return link.bytes_per_s; },
           [](double value, double others) { return value < kSlow * others; }, readable_rate, "is",
           "look at the port, the cable and the switch (ethtool, negotiated speed, errors), at "
           "traffic shaping and at what else sends there; every step waits for the slowest link"},
          found);
  compare({measurements, links, [](const Link& link) { return link.latency_s; },
           [](double value, double others) { return value > 5 * others && value > others + 1e-3; },
           readable_delay, "takes",
           "look at the way that its packets take (traceroute), and at what fills its queues"},
          found);
}

/// What leaves a machine while all send to all, against the best that one of its links has alone.
void find_narrow(const Measurements& measurements, Findings& found) {
  struct Out {
    std::vector<int> ranks;
    double alone = 0;
    double together = 0;
  };
  std::map<std::string, Out> machines;
  for (const Link* const link : links_between_machines(measurements)) {
    Out& out = machines[machine_of(measurements, link->from)->machine_id];
    if (std::ranges::find(out.ranks, link->from) == out.ranks.end()) {
      out.ranks.push_back(link->from);
    }
    out.alone = std::max(out.alone, link->bytes_per_s);
    out.together += link->together_bytes_per_s;
  }
  for (const auto& [id, out] : machines) {
    if (out.together > 0 && out.together < kSlow * out.alone) {
      found.push_back(
          {Severity::kHurts, "links", out.ranks,
           c10::str("all at once: ", readable_rate(out.together), " leave this machine, and ",
                    readable_rate(out.alone), " by one link alone"),
           "the switch, or what is between, carries less than its ports: look at "
           "uplinks and at rates of virtual networks, or synchronise less often "
           "(SlowMo, docs/outer.md)"});
    }
  }
}

void find_clocks(const Measurements& measurements, Findings& found) {
  constexpr double kMuch_s = 0.5;
  for (const auto& link : measurements.links) {
    const double offset = std::abs(link.clock_offset_s) - link.clock_error_s;
    if (link.from == 0 && link.latency_s > 0 && offset > kMuch_s) {
      found.push_back({Severity::kNote,
                       "clocks",
                       {link.to},
                       c10::str("the clock is ", readable_delay(std::abs(link.clock_offset_s)),
                                link.clock_offset_s > 0 ? " ahead of" : " behind",
                                " that of rank 0: logs and times of files will not fit"),
                       "run a time service (chrony, systemd-timesyncd)"});
    }
  }
}

}  // namespace

Findings find_in_links(const Measurements& measurements) {
  Findings found;
  find_missing(measurements, found);
  find_slow(measurements, found);
  find_narrow(measurements, found);
  find_clocks(measurements, found);
  return found;
}

}  // namespace fairshard::cli::doctor
