// fairshard report: one HTML page of some runs.
#include "../commands.h"
#include "assets.h"
#include "page_data.h"
#include "run_log.h"
#include "source_hash.h"
#include <fairshard/store/pending_file.h>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace fairshard::cli {
namespace {

using report::RunLog;

/// The page's template with each {{name}} replaced, once: what is put in may have braces itself.
std::string fill_template(const std::map<std::string_view, std::string_view>& values) {
  std::string page;
  std::string_view rest = report::kPageHtml;
  for (size_t open = rest.find("{{"); open != std::string_view::npos; open = rest.find("{{")) {
    const size_t close = rest.find("}}", open);
    page += rest.substr(0, open);
    page += values.at(rest.substr(open + 2, close - open - 2));
    rest.remove_prefix(close + 2);
  }
  page += rest;
  return page;
}

/// `name` is what a user knows it by.
void write_file(const std::string& file, const std::string& text, const std::string& name) {
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.close();
  TORCH_CHECK_VALUE(stream.good(), name,
                    ": cannot be written: ", std::generic_category().message(errno));
}

/// Under its name when it is complete; a page that was there stays until then.
void write_page(const std::string& file, const std::string& text) {
  std::error_code ignored;
  const auto status = std::filesystem::status(file, ignored);
  if (std::filesystem::exists(status) && std::filesystem::is_other(status)) {
    write_file(file, text, file);  // /dev/stdout, for instance
    return;
  }
  store::PendingFile pending(file, store::PendingFile::Existing::kReplace);
  write_file(pending.temporary_path(), text, file);
  pending.publish();
}

void write_report(const std::vector<std::string>& files, const std::string& output) {
  std::vector<RunLog> logs;
  for (const auto& file : files) {
    logs.push_back(report::read_run_log(file));
    for (const auto& warning : logs.back().warnings) {
      std::cerr << "fairshard: " << warning << "\n";
    }
  }
  const auto data = report::page_data(logs);
  const std::string style_hash = report::source_hash(report::kPageCss);
  const std::string library_hash = report::source_hash(report::kChartJs);
  const std::string script_hash = report::source_hash(report::kPageJs);
  write_page(output, fill_template({{"style", report::kPageCss},
                                    {"style_hash", style_hash},
                                    {"library", report::kChartJs},
                                    {"library_hash", library_hash},
                                    {"script", report::kPageJs},
                                    {"script_hash", script_hash},
                                    {"data", data}}));
  std::cout << output << ": " << logs.size() << (logs.size() == 1 ? " run" : " runs") << "\n";
}

}  // namespace

void add_report(CLI::App& app) {
  struct Options {
    std::vector<std::string> files;
    std::string output = "report.html";
  };
  const auto options = std::make_shared<Options>();
  auto* const command = app.add_subcommand(
      "report", "Writes one HTML page that compares runs; no network is needed.");
  command->add_option("LOG", options->files, "what 'fairshard train --log' wrote, one file per run")
      ->required();
  command->add_option("-o,--output", options->output, "the page to write")->capture_default_str();
  command->callback([options] { write_report(options->files, options->output); });
}

}  // namespace fairshard::cli
