// fairshard completion: what a shell offers when somebody types a command line, made of what the
// commands themselves say of their options.
#include "commands.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace fairshard::cli {
namespace {

std::string joined(const std::vector<std::string>& words, const char* between = " ") {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : between) + word;
  }
  return text;
}

/// "--name", or nothing for what has no name.
std::string name_of(const CLI::Option& option) {
  const auto& names = option.get_lnames();
  return names.empty() ? "" : "--" + names.front();
}

/// The words that an option takes, if it is one of few: CLI11 has them as "TEXT:{a,b}".
std::string choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  const size_t end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) {
    return "";
  }
  std::string words = type.substr(begin + 1, end - begin - 1);
  std::replace(words.begin(), words.end(), ',', ' ');
  return words;
}

/// What follows "command:--option".
std::string values_case(const CLI::App& command, const CLI::Option& option) {
  const std::string choices = choices_of(option);
  return "    " + command.get_name() + ":" + name_of(option) + ") " +
         (choices.empty() ? "_fairshard_files" : "_fairshard_words '" + choices + "'") +
         "; return ;;\n";
}

/// Bash splits --option=value into three words.
constexpr const char* kStart = R"(_fairshard_words() { COMPREPLY=($(compgen -W "$1" -- "$word")); }
_fairshard_files() { COMPREPLY=($(compgen -f -- "$word")); }
_fairshard() {
  local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
  if [[ $word == = ]]; then
    word=
  elif [[ $option == = ]]; then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  COMPREPLY=()
)";

std::string script_of(const CLI::App& app) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  std::vector<std::string> names;
  std::string values;
  std::string options;
  for (const CLI::App* const command : commands) {
    names.push_back(command->get_name());
    std::vector<std::string> own;
    std::vector<std::string> positional;
    for (const CLI::Option* const option : command->get_options()) {
      const std::string name = name_of(*option);
      if (name.empty()) {
        positional.push_back(choices_of(*option));
        continue;
      }
      own.push_back(name);
      if (option->get_expected_max() > 0) {
        values += values_case(*command, *option);
      }
    }
    const std::string words = joined(positional);
    options +=
        "    " + command->get_name() + ") if [[ $word == -* ]]; then _fairshard_words '" +
        joined(own) + "'; else " +
        (words.find_first_not_of(' ') == std::string::npos ? "_fairshard_files"
                                                           : "_fairshard_words '" + words + "'") +
        "; fi ;;\n";
  }
  return kStart + ("  if ((COMP_CWORD == 1)); then _fairshard_words '" + joined(names)) +
         " --help --version'; return; fi\n  case $command:$option in\n" + values +
         "  esac\n  case $command in\n" + options +
         "  esac\n}\ncomplete -o filenames -F _fairshard fairshard\n";
}

}  // namespace

void add_completion(CLI::App& app) {
  const auto shell = std::make_shared<std::string>();
  auto* const command =
      app.add_subcommand("completion",
                         "Prints what makes a shell complete commands and options: "
                         "source <(fairshard completion bash)");
  command->add_option("SHELL", *shell, "the shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
  command->callback([&app, shell] {
    // zsh runs the functions of bash.
    std::cout << (*shell == "zsh"
                      ? "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && "
                        "bashcompinit\n"
                      : "")
              << script_of(app);
  });
}

}  // namespace fairshard::cli
