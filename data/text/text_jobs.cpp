#include "data/text/text_jobs.h"

#include <algorithm>
#include <optional>

#include "data/text/in_order.h"
#include "data/text/line_reader.h"
#include "data/text/output_files.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

/// The data of one thread.
template <class Result>
struct Slot {
  TextBlock block;
  TextReport report;
  Result result;
};

/// Reads the run's inputs in step. `work(slot)` fills result and report, and `take(slot)` gets the slots in
/// order.
template <class Result, class Work, class Take>
void for_each_block(const TextRun& run, Work work, Take take) {
  BlockReader reader(run.inputs, run.block_bytes);
  std::vector<Slot<Result>> slots(run.threads);
  const auto slot = [&](int thread) -> Slot<Result>& { return slots[thread]; };
  run_in_order(run.threads, {.read = [&](int t) { return reader.next(slot(t).block); },
                             .work =
                                 [&](int t) {
                                   slot(t).report = {};
                                   slot(t).report.lines = slot(t).block.lines();
                                   slot(t).report.bytes = slot(t).block.bytes();
                                   work(t, slot(t));
                                 },
                             .take =
                                 [&](int t) {
                                   take(slot(t));
                                   if (run.progress) run.progress(slot(t).block.consumed);
                                 }});
}

/// Sets `lines` to line `i` of every side after the changes of the rules. Returns false if the line is left
/// out. `buffers` has one buffer for each side.
bool prepared_line(const TextBlock& block, std::size_t i, const TextRun& run,
                   std::vector<std::string>& buffers, std::vector<std::string_view>& lines,
                   TextReport& report) {
  lines.clear();
  for (std::size_t side = 0; side < block.sides.size(); ++side) {
    const std::optional<std::string_view> line =
        prepared(block.line(side, i), run.rules, run.inputs[side], block.first_line + i, buffers[side],
                 report.replaced_bytes);
    if (!line) {
      ++report.dropped[static_cast<std::size_t>(DropReason::Invalid)];
      return false;
    }
    lines.push_back(*line);
  }
  return true;
}

// ---- cleaning

std::int64_t characters_of_longest_word(std::string_view line) {
  std::int64_t longest = 0;
  for_each_word(line, [&](std::string_view word) {
    longest = std::max<std::int64_t>(longest, std::count_if(word.begin(), word.end(), [](char c) {
                                       return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
                                     }));
  });
  return longest;
}

bool is_latin1(std::string_view line) {
  for (std::size_t i = 0; i < line.size();) {
    if (next_code_point(line, i) > 0xFF) return false;
  }
  return true;
}

std::optional<DropReason> why_dropped(const std::vector<std::string>& sides, const CleanOptions& options) {
  std::vector<std::int64_t> words;
  for (const std::string& line : sides) {
    if (line.empty()) return DropReason::Empty;
    words.push_back(1 + std::count(line.begin(), line.end(), ' '));
  }
  const auto [least, most] = std::minmax_element(words.begin(), words.end());
  if (*least < options.min_words) return DropReason::Short;
  if (*most > options.max_words) return DropReason::Long;
  if (static_cast<double>(*most) / static_cast<double>(*least) > options.ratio) return DropReason::Ratio;
  for (const std::string& line : sides) {
    if (characters_of_longest_word(line) > options.longest_word) return DropReason::LongWord;
    if (options.latin1 && !is_latin1(line)) return DropReason::NotLatin1;
  }
  return std::nullopt;
}

// ---- encoding

struct EncodedBlock {
  struct Side {
    std::vector<std::uint32_t> tokens;
    std::vector<std::size_t> ends;  // the end of each sentence that stays
    std::uint64_t unknown = 0;
  };
  std::vector<Side> sides;
};

std::uint64_t count_of(const std::vector<std::uint32_t>& tokens, std::uint32_t wanted) {
  return static_cast<std::uint64_t>(std::count(tokens.begin(), tokens.end(), wanted));
}

}  // namespace

std::optional<std::string_view> prepared(std::string_view line, const TextRules& rules,
                                         const std::string& path, std::uint64_t number, std::string& buffer,
                                         std::uint64_t& replaced) {
  const std::size_t bad = first_invalid_utf8(line);
  if (bad != std::string_view::npos) {
    if (rules.invalid == InvalidUtf8::Drop) return std::nullopt;
    if (rules.invalid == InvalidUtf8::Refuse)
      throw DataError(place_of_line(path, number) + ": byte " + std::to_string(bad + 1) + " (" +
                          printed("0x%02x", unsigned{static_cast<unsigned char>(line[bad])}) +
                          ") is no UTF-8",
                      "convert the file (iconv -t UTF-8), or choose --invalid-utf8 replace or drop");
    std::string mended;
    for (std::size_t i = 0; i < line.size();) {
      const std::size_t length = utf8_length(line, i);
      if (length == 0) {
        append_utf8(mended, 0xFFFD);
        ++replaced;
      } else {
        mended.append(line.substr(i, length));
      }
      i += std::max<std::size_t>(length, 1);
    }
    buffer = std::move(mended);
    line = buffer;
  }
  if (rules.form != NormalForm::None) line = buffer = normal_form(line, rules.form);
  if (rules.lower_case) line = buffer = lower_case(line);
  if (rules.split_punctuation)
    line = buffer = split_punctuation(line, rules.joiners ? Joiners::Yes : Joiners::No);
  return line;
}

const char* to_string(DropReason reason) {
  switch (reason) {
    case DropReason::Invalid:
      return "invalid UTF-8";
    case DropReason::Empty:
      return "empty";
    case DropReason::Short:
      return "too short";
    case DropReason::Long:
      return "too long";
    case DropReason::Ratio:
      return "lengths too unequal";
    case DropReason::LongWord:
      return "a word too long";
    case DropReason::NotLatin1:
      return "not Latin-1";
  }
  return "?";
}

void TextReport::add(const TextReport& more) {
  lines += more.lines;
  bytes += more.bytes;
  kept += more.kept;
  replaced_bytes += more.replaced_bytes;
  for (std::size_t i = 0; i < kNumDropped; ++i) dropped[i] += more.dropped[i];
}

TextReport clean_files(const TextRun& run, const CleanOptions& options,
                       const std::vector<std::string>& outputs, Existing existing) {
  OutputFiles files(outputs, run.inputs, existing);
  std::vector<FileWriter> writers;
  for (std::size_t i = 0; i < files.size(); ++i) writers.emplace_back(files.temporary(i));
  TextReport report;
  using Texts = std::vector<std::string>;
  for_each_block<Texts>(
      run,
      [&](int, Slot<Texts>& slot) {
        slot.result.assign(run.inputs.size(), {});
        std::vector<std::string> buffers(run.inputs.size()), spaced(run.inputs.size());
        std::vector<std::string_view> lines;
        for (std::size_t i = 0; i < slot.block.lines(); ++i) {
          if (!prepared_line(slot.block, i, run, buffers, lines, slot.report)) continue;
          for (std::size_t side = 0; side < lines.size(); ++side) spaced[side] = single_spaced(lines[side]);
          if (const std::optional<DropReason> reason = why_dropped(spaced, options)) {
            ++slot.report.dropped[static_cast<std::size_t>(*reason)];
            continue;
          }
          ++slot.report.kept;
          for (std::size_t side = 0; side < lines.size(); ++side) slot.result[side] += spaced[side] + '\n';
        }
      },
      [&](const Slot<Texts>& slot) {
        for (std::size_t side = 0; side < writers.size(); ++side) writers[side].write(slot.result[side]);
        report.add(slot.report);
      });
  for (FileWriter& writer : writers) writer.commit(Durability::Synced);
  files.publish();
  return report;
}

WordCounts count_words(const TextRun& run, TextReport& report) {
  WordCounts all;
  Bytes before = 0;
  for (const std::string& input : run.inputs) {
    TextRun one = run;
    one.inputs = {input};
    one.progress = [&](Bytes done) {
      if (run.progress) run.progress(before + done);
    };
    for_each_block<WordCounts>(
        one,
        [&](int, Slot<WordCounts>& slot) {
          slot.result.clear();
          std::vector<std::string> buffers(1);
          std::vector<std::string_view> lines;
          for (std::size_t i = 0; i < slot.block.lines(); ++i) {
            if (!prepared_line(slot.block, i, one, buffers, lines, slot.report)) continue;
            ++slot.report.kept;
            slot.result.add_line(lines[0]);
          }
        },
        [&](const Slot<WordCounts>& slot) {
          all.add(slot.result);
          report.add(slot.report);
        });
    before += size_of_files({input});
  }
  return all;
}

TextReport apply_bpe_to_files(const TextRun& run, const BpeCodes& codes,
                              const std::vector<std::string>& outputs, Existing existing) {
  OutputFiles files(outputs, run.inputs, existing);
  std::vector<BpeCache> caches(run.threads, BpeCache(codes));
  TextReport report;
  Bytes before = 0;
  for (std::size_t k = 0; k < run.inputs.size(); ++k) {
    TextRun one = run;
    one.inputs = {run.inputs[k]};
    one.progress = [&](Bytes done) {
      if (run.progress) run.progress(before + done);
    };
    FileWriter writer(files.temporary(k));
    for_each_block<std::string>(
        one,
        [&](int thread, Slot<std::string>& slot) {
          slot.result.clear();
          std::vector<std::string> buffers(1);
          std::vector<std::string_view> lines;
          for (std::size_t i = 0; i < slot.block.lines(); ++i) {
            if (!prepared_line(slot.block, i, one, buffers, lines, slot.report)) continue;
            ++slot.report.kept;
            apply_bpe(caches[thread], lines[0], slot.result);
            // The output's last line ends with "\n" only if the input's last line does.
            if (i + 1 < slot.block.lines() || slot.block.sides[0].terminated) slot.result += '\n';
          }
        },
        [&](const Slot<std::string>& slot) {
          writer.write(slot.result);
          report.add(slot.report);
        });
    writer.commit(Durability::Synced);
    before += size_of_files({run.inputs[k]});
  }
  files.publish();
  return report;
}

TextReport encode_files(const TextRun& run, const EncodeOptions& options,
                        const std::vector<EncodedSide>& sides, const std::vector<std::string>& outputs,
                        Existing existing) {
  const std::size_t width = run.inputs.size();
  MILLRACE_CHECK(sides.size() == width && outputs.size() == width);
  OutputFiles files(outputs, run.inputs, existing);
  std::vector<TokenFileWriter> writers;
  std::vector<std::unique_ptr<Segmenter>> segmenters;  // at thread x sides + side
  for (std::size_t i = 0; i < width; ++i)
    writers.emplace_back(files.temporary(i), *sides[i].vocabulary, options.vocabulary_padding);
  for (int thread = 0; thread < run.threads; ++thread) {
    for (const EncodedSide& side : sides) segmenters.push_back(side.segmenter());
  }
  TextReport report;
  report.unknown.resize(width);
  for_each_block<EncodedBlock>(
      run,
      [&](int thread, Slot<EncodedBlock>& slot) {
        slot.result.sides.assign(width, {});
        std::vector<std::string> buffers(width);
        std::vector<std::string_view> lines;
        for (std::size_t i = 0; i < slot.block.lines(); ++i) {
          if (!prepared_line(slot.block, i, run, buffers, lines, slot.report)) continue;
          std::optional<DropReason> reason;
          for (std::size_t s = 0; s < width; ++s) {
            EncodedBlock::Side& side = slot.result.sides[s];
            const std::size_t begin = side.ends.empty() ? 0 : side.ends.back();
            segmenters[static_cast<std::size_t>(thread) * width + s]->segment(lines[s], side.tokens);
            const auto length = static_cast<std::int64_t>(side.tokens.size() - begin);
            if (length < options.min_tokens)
              reason = reason.value_or(length == 0 ? DropReason::Empty : DropReason::Short);
            if (length > options.max_tokens) reason = reason.value_or(DropReason::Long);
          }
          if (reason) {
            ++slot.report.dropped[static_cast<std::size_t>(*reason)];
          } else {
            ++slot.report.kept;
          }
          for (EncodedBlock::Side& side : slot.result.sides) {
            if (reason) {
              side.tokens.resize(side.ends.empty() ? 0 : side.ends.back());
            } else {
              side.ends.push_back(side.tokens.size());
            }
          }
        }
        for (std::size_t s = 0; s < width; ++s)
          slot.result.sides[s].unknown = count_of(slot.result.sides[s].tokens, sides[s].vocabulary->unk());
      },
      [&](const Slot<EncodedBlock>& slot) {
        for (std::size_t s = 0; s < width; ++s) {
          const EncodedBlock::Side& side = slot.result.sides[s];
          std::size_t begin = 0;
          for (const std::size_t end : side.ends) {
            writers[s].write(std::span(side.tokens).subspan(begin, end - begin));
            begin = end;
          }
          report.unknown[s] += side.unknown;
        }
        report.add(slot.report);
      });
  for (TokenFileWriter& writer : writers) {
    writer.commit();
    report.files.push_back(writer.info());
  }
  files.publish();
  return report;
}

void decode_file(const TokenFile& file, const Vocabulary& vocabulary, int threads,
                 const std::function<void(std::string_view)>& write) {
  constexpr std::int64_t kSentences = 4096;
  struct Part {
    std::int64_t begin = 0, end = 0;
    std::string text;
  };
  std::vector<Part> parts(threads);
  const auto part = [&](int thread) -> Part& { return parts[thread]; };
  std::int64_t next = 0;
  run_in_order(threads, {.read =
                             [&](int t) {
                               part(t).begin = next;
                               part(t).end = next = std::min(file.size(), next + kSentences);
                               return part(t).begin < part(t).end;
                             },
                         .work =
                             [&](int t) {
                               part(t).text.clear();
                               std::vector<std::uint32_t> tokens;
                               for (std::int64_t i = part(t).begin; i < part(t).end; ++i) {
                                 file.read(i, tokens);
                                 part(t).text += vocabulary.text(tokens) + '\n';
                               }
                             },
                         .take = [&](int t) { write(part(t).text); }});
}

void write_text_output(const std::string& path, std::string_view text, Existing existing) {
  OutputFiles files({path}, {}, existing);
  FileWriter writer(files.temporary(0));
  writer.write(text);
  writer.commit(Durability::Synced);
  files.publish();
}

}  // namespace millrace
