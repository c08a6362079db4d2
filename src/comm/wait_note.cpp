#include "wait_note.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <locale>
#include <sstream>

namespace fairshard::comm {
namespace {

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

void write_call(std::ostream& out, const std::optional<StandingNote::Call>& call) {
  out << ' ' << call.has_value();
  if (call) {
    out << ' ' << call->sequence << ' ' << std::quoted(call->text) << ' ' << call->age_s;
  }
}

void read_call(std::istream& in, std::optional<StandingNote::Call>& call) {
  bool has_value = false;
  in >> has_value;
  if (in && has_value) {
    StandingNote::Call read;
    in >> read.sequence >> std::quoted(read.text) >> read.age_s;
    call = std::move(read);
  }
}

double age_s(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

std::optional<StandingNote::Call> call_note(const std::optional<NamedCall>& call) {
  if (!call) {
    return std::nullopt;
  }
  return StandingNote::Call{call->sequence, call->text, age_s(call->since)};
}

constexpr const char* kFormat = "fairshard-wait-1";

}  // namespace

Whereabouts Whereabouts::own() {
  std::array<char, HOST_NAME_MAX + 1> host{};
  gethostname(host.data(), host.size() - 1);
  std::array<char, 64> pids{};
  const ssize_t length = readlink("/proc/self/ns/pid", pids.data(), pids.size());
  return {host.data(), getpid(),
          first_line_of("/proc/sys/kernel/random/boot_id") + " " +
              std::string(pids.data(), length > 0 ? static_cast<size_t>(length) : 0)};
}

ProcessState state_of_process(const Whereabouts& process, const Whereabouts& own) {
  if (process.machine != own.machine) {
    return ProcessState::kUnknown;
  }
  if (kill(static_cast<pid_t>(process.pid), 0) != 0 && errno == ESRCH) {
    return ProcessState::kEnded;
  }
  // "pid (name) state ...", and a name may have parentheses itself
  const std::string line = first_line_of("/proc/" + std::to_string(process.pid) + "/stat");
  const size_t name_end = line.rfind(')');
  const char state = name_end == std::string::npos ? '?' : line[name_end + 2];
  switch (state) {
    case 'T':
    case 't':
      return ProcessState::kStopped;
    case 'Z':
    case 'X':
      return ProcessState::kEnded;
    case '?':
      return ProcessState::kUnknown;
    default:
      return ProcessState::kAlive;
  }
}

StandingNote to_note(const Standing& standing) {
  return {call_note(standing.current), call_note(standing.last), standing.started,
          standing.awaited};
}

std::string seconds_text(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), seconds < 10 ? "%.1f s" : "%.0f s", seconds);
  return text.data();
}

std::string WaitNote::encoded() const {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << kFormat << ' ' << std::quoted(where.host) << ' ' << where.pid << ' '
      << std::quoted(where.machine) << ' ' << step << ' ' << standings.size();
  for (const StandingNote& standing : standings) {
    write_call(out, standing.current);
    write_call(out, standing.last);
    out << ' ' << standing.started << ' ' << static_cast<int>(standing.awaited.what) << ' '
        << standing.awaited.peer;
  }
  return out.str();
}

std::optional<WaitNote> WaitNote::decoded(const std::string& text) {
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  std::string format;
  WaitNote note;
  size_t count = 0;
  in >> format >> std::quoted(note.where.host) >> note.where.pid >>
      std::quoted(note.where.machine) >> note.step >> count;
  for (size_t i = 0; in && i < count; ++i) {
    StandingNote& standing = note.standings.emplace_back();
    int what = 0;
    read_call(in, standing.current);
    read_call(in, standing.last);
    in >> standing.started >> what >> standing.awaited.peer;
    standing.awaited.what = static_cast<Awaits>(what);
  }
  if (!in || format != kFormat) {
    return std::nullopt;
  }
  return note;
}

}  // namespace fairshard::comm
