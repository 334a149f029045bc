// Chooses files or made-up text for `--data` of models over tokens.
#include <filesystem>
#include <optional>

#include "data/language/language_datasets.h"
#include "data/loading/samples.h"
#include "runtime/base/numbers.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// A form of text and the fields that its data sets fill.
struct TextForm {
  SampleForm form;
  std::vector<const char*> fields;
};

const TextForm* text_form_of(const std::vector<FieldSpec>& fields) {
  static const std::vector<TextForm> forms{
      {SampleForm::Translation, {"source", "target", "labels"}},
      {SampleForm::RunningText, {"tokens", "labels"}},
      {SampleForm::BertPairs,
       {"input_ids", "token_type_ids", "masked_positions", "masked_labels", "next_sentence"}},
      {SampleForm::Captions, {"frames", "tokens", "labels"}}};
  if (fields.empty()) return nullptr;
  const auto found = std::ranges::find(forms, fields[0].form, &TextForm::form);
  return found == forms.end() ? nullptr : &*found;
}

constexpr std::int64_t kTrainSentences = 4096;

/// Returns the number of sentences of "synthetic[:SIZE]", or nothing for another text.
Result<std::optional<std::int64_t>> synthetic_size(const std::string& path, bool train) {
  constexpr std::string_view kName = "synthetic";
  if (path != kName && !path.starts_with("synthetic:")) return std::optional<std::int64_t>();
  std::int64_t size = kTrainSentences;
  if (path != kName) {
    const std::string_view text = std::string_view(path).substr(kName.size() + 1);
    size = number_of<std::int64_t>(text).value_or(0);
    if (size < 1 || size > INT32_MAX)
      return Problem{"--data", "'" + path + "' has no valid size", "for example synthetic:4096"};
  }
  return std::optional(train ? size : std::max<std::int64_t>(1, size / 8));
}

TokenSourcePtr synthetic_text(SampleForm form, std::int64_t sentences, std::int64_t longest,
                              std::int64_t first, const DatasetOptions& options, const char* side) {
  const std::int64_t limit = options.fields[0].limit;
  return made_up_text({.sentences = sentences,
                       .shortest = std::min<std::int64_t>(longest, 3),
                       .longest = longest,
                       .first = std::min(first, limit - 1),
                       .limit = limit,
                       .seed = derive_seed(options.seed, to_string(options.split) + side),
                       .documents = form == SampleForm::BertPairs});
}

/// Opens FOLDER/SPLIT[.LANGUAGE].tokens. Returns null if there is none.
Result<TokenSourcePtr> split_file(const fs::path& folder, DataSplit split, const std::string& language,
                                  std::int64_t limit) {
  const std::vector<std::string> names = split_names(split);
  for (const std::string& name : names) {
    const fs::path path = folder / (name + (language.empty() ? "" : "." + language) + ".tokens");
    if (fs::exists(path)) return tokens_in_file(path.string(), limit);
  }
  if (split != DataSplit::Train) return TokenSourcePtr();
  return Problem{
      "--data",
      folder.string() + " has no " + names[0] + (language.empty() ? "" : "." + language) + ".tokens",
      "`millrace data text encode` makes token files (docs/language.md)"};
}

/// Returns a Problem if the file's words were cut in another way than the model's special tokens expect.
Status has_kind(const TokenSource& text, TokenKind wanted, const char* model, const char* special) {
  if (!text.kind() || *text.kind() == wanted) return Ok{};
  return Problem{"--data",
                 text.describe() + ": its tokens are " + to_string(*text.kind()) + ", and " + model +
                     " reads " + to_string(wanted) + ": " + special + " would be words of the text",
                 "encode the text again (docs/text.md)"};
}

/// The parts of "FOLDER:de-en": FOLDER, de, en.
struct Languages {
  std::string folder, source, target;
};
Result<Languages> languages_of(const std::string& path) {
  const std::size_t colon = path.rfind(':'), dash = path.find('-', colon == std::string::npos ? 0 : colon);
  if (colon == std::string::npos || dash == std::string::npos || dash == colon + 1 ||
      dash + 1 == path.size()) {
    return Problem{"--data", "'" + path + "' does not say which languages",
                   "give FOLDER:SOURCE-TARGET, for example multi30k:de-en for train.de.tokens and "
                   "train.en.tokens in multi30k; or synthetic"};
  }
  return Languages{path.substr(0, colon), path.substr(colon + 1, dash - colon - 1), path.substr(dash + 1)};
}

/// Returns the special tokens of BERT's vocabularies, or, for up to 1000 tokens, those of a made-up one.
BertTokens bert_tokens(std::int64_t vocabulary) {
  if (vocabulary > 1000) return {};
  return {.begin = 1, .separator = 2, .mask = 3, .first_word = 4};
}

}  // namespace

std::vector<std::string> split_names(DataSplit split) {
  if (split == DataSplit::Test) return {"test", "val", "valid"};
  return {to_string(split)};
}

bool reads_text(const std::vector<FieldSpec>& fields) {
  return text_form_of(fields) != nullptr;
}

Result<std::shared_ptr<const Dataset>> make_language_dataset(const DatasetOptions& options) {
  const TextForm& text_form = *text_form_of(options.fields);
  const SampleForm form = text_form.form;
  for (const char* name : text_form.fields) {
    if (field_index(options.fields, name) < 0)
      return Problem{"--data", std::string("the model says that it reads text, but has no field ") + name,
                     "SampleForm names the fields of each form"};
  }
  const bool train = options.split == DataSplit::Train;
  LanguageOptions language{.fields = options.fields,
                           .seed = options.seed,
                           .train = train,
                           .length_buckets = options.length_buckets,
                           .random_windows = options.random_bptt};
  if (!options.dimensions.empty()) language.longest = options.dimensions[0].nominal;
  if (options.length_buckets > 0 && form != SampleForm::Translation)
    return Problem{"--length-buckets", "is for pairs of sentences", "leave it out"};
  if (options.random_bptt && form != SampleForm::RunningText)
    return Problem{"--random-bptt", "is for text that runs on", "leave it out"};
  const Result<std::optional<std::int64_t>> synthetic = synthetic_size(options.path, train);
  if (!synthetic) return synthetic.problems();
  if (form == SampleForm::Captions) {
    if (!*synthetic) return captions_in_folder(options.path, options.split, language);
    language.seed = derive_seed(options.seed, to_string(options.split));
    return made_up_captions(**synthetic, language);
  }
  const std::int64_t limit = options.fields[0].limit;
  if (form == SampleForm::Translation) {
    constexpr std::int64_t kFirstWord = 4;
    if (*synthetic) {
      const std::int64_t longest =
          std::max<std::int64_t>(1, std::min<std::int64_t>(language.longest, 1 << 20) - 2);
      return parallel_text(synthetic_text(form, **synthetic, longest, kFirstWord, options, "source"),
                           synthetic_text(form, **synthetic, longest, kFirstWord, options, "target"),
                           language);
    }
    const Result<Languages> names = languages_of(options.path);
    if (!names) return names.problems();
    const Result<TokenSourcePtr> source = split_file(names->folder, options.split, names->source, limit);
    if (!source) return source.problems();
    const Result<TokenSourcePtr> target = split_file(names->folder, options.split, names->target, limit);
    if (!target) return target.problems();
    if (!*source || !*target) return std::shared_ptr<const Dataset>();
    for (const TokenSourcePtr& side : {*source, *target}) {
      const Status fits = has_kind(*side, TokenKind::Bpe, "a model of translation", "begin 2 and end 3");
      if (!fits) return fits.problems();
    }
    return parallel_text(*source, *target, language);
  }
  if (form == SampleForm::BertPairs && !*synthetic) {
    for (const std::string& name : split_names(options.split)) {
      if (fs::exists(fs::path(options.path) / (name + ".tokens"))) break;
      if (const RecordFiles files = record_files(options.path, name); !files.paths.empty())
        return bert_records(files, language);
    }
  }
  TokenSourcePtr text;
  if (*synthetic) {
    const std::int64_t first = form == SampleForm::BertPairs ? bert_tokens(limit).first_word : 0;
    text =
        synthetic_text(form, **synthetic,
                       form == SampleForm::BertPairs ? std::max<std::int64_t>(3, language.longest / 4) : 40,
                       first, options, "");
  } else {
    Result<TokenSourcePtr> file = TokenSourcePtr();
    std::error_code ignored;
    if (form == SampleForm::RunningText && !fs::exists(fs::path(options.path) / "train.tokens", ignored))
      file = words_in_folder(options.path, options.split, limit);
    if (file && !*file) file = split_file(options.path, options.split, "", limit);
    if (!file) return file.problems();
    if (!*file) return std::shared_ptr<const Dataset>();
    text = *file;
  }
  if (form == SampleForm::BertPairs) {
    const Status fits = has_kind(*text, TokenKind::WordPiece, "BERT", "[CLS], [SEP] and [MASK]");
    if (!fits) return fits.problems();
  }
  if (form == SampleForm::BertPairs) return bert_pairs(text, bert_tokens(limit), language);
  return running_text(text, std::max<std::int64_t>(1, options.per_step), text->end(), language);
}

}  // namespace millrace
