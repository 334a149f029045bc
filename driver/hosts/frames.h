// The bytes between a launcher and the agent that runs ranks on another host: frames over the agent's
// standard input and output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

/// The first bytes of an agent. Whatever stands before them is a banner or a login shell's talk.
inline constexpr const char* kAgentGreeting = "\nmillrace-agent-1\n";

enum class FrameType : char {
  // The launcher sends these. All are JSON but File, Signal, PeerLost and Finish.
  Job = 'J',       ///< what to run (agent_job.h); another one may follow when all ranks have ended
  File = 'F',      ///< the path of an input, a zero byte, a piece of its content; the last piece is empty
  Go = 'G',        ///< {environment, resume}: what the ranks get too, such as where they meet; they start
  Signal = 'S',    ///< a number in decimal digits, for all ranks
  PeerLost = 'L',  ///< a rank of the job has failed: the others end, and some may be kept for the next job
  Collect =
      'T',  ///< {step}: the shards of this checkpoint are wanted; {logs}: what logs have behind these lines
  Finish = 'Z',  ///< nothing more is wanted of this host
  // The agent sends these. All are JSON but Refused, Output, ErrorOutput, Result, Grown, Saved, Shard and
  // Ended.
  Hello = 'H',        ///< {version, host}
  Need = 'N',         ///< {paths}: the inputs that this host lacks
  Ready = 'R',        ///< {shared, port, address, resolves}: the ranks can start; the output folder is the
                      ///< launcher's; a
                      ///< free port; the host's address; the name of the first host means an address here
  Refused = '!',      ///< why the agent cannot run these ranks: a problem a line
  Output = 'o',       ///< rank (4 bytes), what it wrote to stdout
  ErrorOutput = 'e',  ///< rank (4 bytes), what it wrote to stderr
  Exit = 'X',         ///< {rank, pid, status, signal, suspended, silence, kept}: how a rank ended
  Result = 'C',       ///< the path of a file below the output folder, a zero byte, its content
  Grown = 'A',  ///< the path of a log below the output folder, a zero byte, the bytes of it that came before,
                ///< a zero byte, what was appended
  Saved = 'K',  ///< the prefix of its paths (kBestPrefix or empty), a zero byte, the manifest of a checkpoint
                ///< whose shards of this host's ranks are on its disk
  Held =
      'Q',  ///< {prefix, manifest, files}: a checkpoint of an earlier run, and its shards that this host has
  Shard = 'P',  ///< "STEP/FILE", a zero byte, a piece of its content; the last piece is empty. "STEP/" is
                ///< sent after all shards of this host
  Ended = 'E',  ///< all ranks have ended and all results are here
  Done = 'D',   ///< the answer to Finish
};

struct Frame {
  FrameType type = FrameType::Done;
  std::string payload;
};

/// Files go in pieces of so many bytes.
inline constexpr std::size_t kPiece = 256 << 10;
/// A longer frame is none of ours.
inline constexpr std::uint32_t kLongestFrame = 256u << 20;

std::string to_bytes(FrameType type, std::string_view payload);
/// A payload that begins with a path.
std::string with_path(const std::string& path, std::string_view bytes);
/// A payload that begins with a rank.
std::string with_rank(int rank, std::string_view bytes);

/// Cuts bytes into frames. Not thread-safe.
class FrameReader {
 public:
  /// `greeting` is skipped with all before it; empty: the first byte is a frame's.
  explicit FrameReader(std::string greeting = {}) : greeting_(std::move(greeting)) {}
  void add(std::string_view bytes) { buffer_ += bytes; }
  /// Returns the next frame; empty: more bytes are needed. Throws PeerError if the bytes are no frames, or if
  /// 64 KiB came without the greeting.
  std::optional<Frame> next();
  bool is_greeted() const { return greeting_.empty(); }
  /// Returns what came before the greeting, for messages.
  const std::string& noise() const { return noise_; }

 private:
  std::string greeting_;
  std::string noise_;
  std::string buffer_;
  std::size_t at_ = 0;
};

/// The rank of a payload, which is cut off from it. Throws PeerError.
int take_rank(std::string_view& payload);
/// The path before the zero byte of a payload, which is cut off from it. Throws PeerError.
std::string take_path(std::string_view& payload);

}  // namespace millrace
