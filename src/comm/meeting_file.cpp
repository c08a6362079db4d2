#include "meeting_file.h"

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace fairshard::comm {

OpenFile::OpenFile(const std::string& path)
    : number_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
  if (number_ < 0) {
    C10_THROW_ERROR(DistStoreError, c10::str("cannot open the file ", path,
                                             ", in which ranks meet: ", std::strerror(errno)));
  }
}

OpenFile::~OpenFile() { close(number_); }

std::string OpenFile::name() const { return c10::str("/proc/self/fd/", number_); }

MeetingFile::MeetingFile(const std::string& path, int ranks)
    : MeetingFile(std::make_shared<OpenFile>(path), ranks) {}

MeetingFile::MeetingFile(const std::shared_ptr<OpenFile>& opened, int ranks)
    : KeptOpen{opened}, FileStore(opened->name(), ranks), ranks_(ranks) {}

c10::intrusive_ptr<c10d::Store> MeetingFile::clone() {
  return c10::make_intrusive<MeetingFile>(file, ranks_);
}

void remove_name(const std::string& path) {
  unlink(path.c_str());
  rmdir(path.substr(0, path.find_last_of('/')).c_str());
}

}  // namespace fairshard::comm
