#include "counts.h"

#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <tuple>
#include <utility>

#include "standin.h"

namespace standin::counts {
namespace {

constexpr std::array kNames{"operator", "copy", "wait", "allocation", "event", "peak"};
constexpr std::size_t kPlaces = 6;  // callers in the program, the innermost first

/// Where the program itself lies, without its libraries.
struct Program {
  std::uintptr_t base = 0, begin = 0, end = 0;
  std::string path;
};

Program find_program() {
  Program found;
  // The first that is listed is the program.
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        auto& program = *static_cast<Program*>(out);
        program.base = info->dlpi_addr;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& part = info->dlpi_phdr[i];
          if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
          program.begin = info->dlpi_addr + part.p_vaddr;
          program.end = program.begin + part.p_memsz;
        }
        return 1;
      },
      &found);
  std::array<char, 4096> path{};
  if (readlink("/proc/self/exe", path.data(), path.size() - 1) > 0) found.path = path.data();
  return found;
}

/// Callers as the program's file has them, 0 where there are fewer.
using Places = std::array<std::uintptr_t, kPlaces>;

struct Key {
  int device;
  Kind kind;
  std::string name;
  Places places;
  auto operator<=>(const Key&) const = default;
};
struct Total {
  std::uint64_t count = 0, bytes = 0;
};
/// The memory of one GPU that is in use.
struct Memory {
  struct Piece {
    std::size_t bytes = 0;
    Places places;
  };
  std::map<const void*, Piece> pieces;
  std::map<Places, Total> by_place, at_peak;
  std::size_t bytes = 0, peak = 0;
  bool rises = false;  ///< at its peak now: at_peak is of an earlier moment
};

/// Used until the process ends.
struct Table {
  int file = -1;
  Program program;
  std::mutex lock;
  std::map<Key, Total> rows;
  std::map<int, Memory> memories;  ///< by GPU
};

void write_table();

/// Null if nobody wants it.
Table* table() {
  static Table* const one = [] {
    const char* path = std::getenv("STANDIN_COUNTS");
    if (!path || !*path) return static_cast<Table*>(nullptr);
    auto* made = new Table;
    made->file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (made->file < 0) {
      say(std::string("STANDIN_COUNTS=") + path + " cannot be written");
      _exit(2);
    }
    made->program = find_program();
    std::atexit(write_table);
    return made;
  }();
  return one;
}

/// A line for each row. Processes append to one file, each in one piece.
void write_table() {
  Table& all = *table();
  const std::lock_guard lock(all.lock);
  for (auto& [device, memory] : all.memories) {
    if (memory.rises) memory.at_peak = memory.by_place;
    for (const auto& [places, total] : memory.at_peak)
      all.rows[{device, Kind::Peak, "memory", places}] = total;
  }
  std::ostringstream text;
  for (const auto& [key, total] : all.rows) {
    text << getpid() << '\t' << all.program.path << '\t' << key.device << '\t'
         << kNames.at(static_cast<std::size_t>(key.kind)) << '\t' << key.name << '\t' << total.count << '\t'
         << total.bytes << '\t' << std::hex;
    for (const std::uintptr_t place : key.places)
      if (place != 0) text << (place == key.places.front() ? "" : ",") << place;
    text << std::dec << '\n';
  }
  const std::string lines = text.str();
  if (write(all.file, lines.data(), lines.size()) != static_cast<ssize_t>(lines.size()))
    say("STANDIN_COUNTS: the table could not be written");
}

Places callers(const Program& program) {
  std::array<void*, 96> frames{};
  const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
  Places places{};
  std::size_t found = 0;
  for (int i = 0; i < depth && found < kPlaces; ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(frames[static_cast<std::size_t>(i)]);
    // A return address is behind its call, which may be the last of its function.
    if (address > program.begin && address < program.end) places[found++] = address - 1 - program.base;
  }
  return places;
}

std::string side_of(const Block& block) {
  if (block.bytes == 0) return "pageable";
  return block.device < 0 ? "page-locked" : "GPU";
}

}  // namespace

int& Quiet::depth() {
  static thread_local int count = 0;
  return count;
}

void add(Kind kind, const std::string& name, std::size_t bytes) {
  if (kind == Kind::Operator) load_kernel(name);
  Table* const all = table();
  if (!all || Quiet::depth() > 0) return;
  const auto places = callers(all->program);
  const std::lock_guard lock(all->lock);
  Total& total = all->rows[{current_device(), kind, name, places}];
  ++total.count;
  total.bytes += bytes;
}

void add_copy(const void* to, const void* from, std::size_t bytes) {
  if (table()) add(Kind::Copy, side_of(block_of(from)) + " to " + side_of(block_of(to)), bytes);
}

bool wanted() {
  return table() != nullptr;
}

void took(int device, const void* address, std::size_t bytes) {
  Table* const all = table();
  if (!all) return;
  const Places places = callers(all->program);
  const std::lock_guard lock(all->lock);
  Memory& memory = all->memories[device];
  memory.pieces[address] = {bytes, places};
  Total& total = memory.by_place[places];
  ++total.count;
  total.bytes += bytes;
  memory.bytes += bytes;
  if (memory.bytes > memory.peak) memory.peak = memory.bytes, memory.rises = true;
}

void gave_back(int device, const void* address) {
  Table* const all = table();
  if (!all) return;
  const std::lock_guard lock(all->lock);
  Memory& memory = all->memories[device];
  const auto piece = memory.pieces.find(address);
  if (piece == memory.pieces.end()) return;  // from before somebody looked
  if (std::exchange(memory.rises, false)) memory.at_peak = memory.by_place;
  const auto place = memory.by_place.find(piece->second.places);
  place->second.bytes -= piece->second.bytes;
  if (--place->second.count == 0) memory.by_place.erase(place);
  memory.bytes -= piece->second.bytes;
  memory.pieces.erase(piece);
}

}  // namespace standin::counts
