#pragma once
// The subcommands of the program `fairshard`, one file or folder each. Each adds itself to the
// program and runs when it was chosen.

namespace CLI {
class App;
}  // namespace CLI

namespace fairshard::cli {

void add_completion(CLI::App& app);
void add_consolidate(CLI::App& app);
void add_create(CLI::App& app);
void add_doctor(CLI::App& app);
void add_export(CLI::App& app);
void add_inspect(CLI::App& app);
void add_plan(CLI::App& app);
void add_report(CLI::App& app);
void add_sample(CLI::App& app);
void add_train(CLI::App& app);

}  // namespace fairshard::cli
