#include "json.h"

namespace fairshard::cli::doctor {
namespace {

Json json_of(const comm::Link& link) {
  return {{"from", link.from},
          {"to", link.to},
          {"address", link.address},
          {"fault", link.fault},
          {"connect_s", link.connect_s},
          {"latency_s", link.latency_s},
          {"bytes_per_s", link.bytes_per_s},
          {"together_bytes_per_s", link.together_bytes_per_s},
          {"clock_offset_s", link.clock_offset_s},
          {"clock_error_s", link.clock_error_s}};
}

Json json_of(const std::vector<comm::Link>& links) {
  Json list = Json::array();
  for (const auto& link : links) {
    list.push_back(json_of(link));
  }
  return list;
}

/// Names and paths may have bytes that are no UTF-8.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Json json_of(const Measurements& measurements, const std::vector<Finding>& findings) {
  Json found = Json::array();
  for (const auto& each : findings) {
    found.push_back({{"severity", name_of(each.severity)},
                     {"topic", each.topic},
                     {"ranks", each.ranks},
                     {"seen", each.seen},
                     {"change", each.change}});
  }
  return {{"ranks", measurements.ranks},
          {"machines", measurements.machines},
          {"links", json_of(measurements.links)},
          {"findings", found},
          {"is_fine", is_fine(findings)}};
}

std::string to_text(const Machine& machine) { return dump(machine); }
Machine machine_from(const std::string& text) { return Json::parse(text).get<Machine>(); }

std::string to_text(const std::vector<comm::Link>& links) { return dump(json_of(links)); }

std::vector<comm::Link> links_from(const std::string& text) {
  std::vector<comm::Link> links;
  for (const auto& each : Json::parse(text)) {
    comm::Link& link = links.emplace_back();
    each.at("from").get_to(link.from);
    each.at("to").get_to(link.to);
    each.at("address").get_to(link.address);
    each.at("fault").get_to(link.fault);
    each.at("connect_s").get_to(link.connect_s);
    each.at("latency_s").get_to(link.latency_s);
    each.at("bytes_per_s").get_to(link.bytes_per_s);
    each.at("together_bytes_per_s").get_to(link.together_bytes_per_s);
    each.at("clock_offset_s").get_to(link.clock_offset_s);
    each.at("clock_error_s").get_to(link.clock_error_s);
  }
  return links;
}

}  // namespace fairshard::cli::doctor
