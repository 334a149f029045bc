// From raw text to a score with the program alone: text to tokens, a pipeline that learns them by heart,
// checkpoints translated and scored.
#include "tests/worker/job_fixture.h"

#include <algorithm>

namespace millrace {
namespace {

class Translate : public Jobs {
 protected:
  static constexpr int kPairs = 32;

  void SetUp() override {
    Jobs::SetUp();
    const char* const nouns[] = {"Hund", "Mann", "Baum", "Vogel"};
    const char* const names[] = {"dog", "man", "tree", "bird"};
    std::string de, en;
    for (int i = 0; i < kPairs; ++i) {
      const int a = i % 4, b = i / 4 % 4;
      de += std::string("Der ") + nouns[a] + (i < 16 ? ", der den " : " sieht den ") + nouns[b] + " sucht.\n";
      en += std::string("The ") + names[a] + (i < 16 ? "'s " : " - a ") + names[b] + " (" + names[a] + ")!\n";
    }
    write("text.de", de);
    write("text.en", en);
    const std::string rules = " --joiners -c bpe -v vocab";
    ok("data text learn-bpe text.de text.en --joiners --merges 40 -o bpe");
    ok("data text vocab text.de text.en --joiners -c bpe -o vocab");
    fs::create_directory(folder_ / "data");
    ok("data text encode text.de text.en" + rules + " -o data/train.de.tokens -o data/train.en.tokens");
  }

  /// Runs and expects success; the output.
  std::string ok(const std::string& arguments) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.output;
    return ran.output;
  }
  std::string vocabulary_size() {
    const std::string text = ok("data text check data/train.de.tokens -v vocab");
    const std::string before = "vocabulary of ";
    const std::size_t at = text.find(before) + before.size();
    return text.substr(at, text.find(' ', at) - at);
  }
  /// Two ranks on the text; checkpoints in run/, weights in w.safetensors.
  void train(int steps) {
    ok("train --model gnmt --layers 2 --hidden 32 --dropout 0 --label-smoothing 0 --vocabulary " +
       vocabulary_size() +
       " --stages 2 --microbatches 2 --microbatch 8 --data data:de-en --rule adam --lr 1e-2 --clip-norm 1 "
       "--steps " +
       std::to_string(steps) +
       " --checkpoint-every 100 --checkpoint-at-end --keep-checkpoints 0 --output-dir run "
       "--save-weights w.safetensors");
  }
  static inline const std::string kFlags = " --joiners -c bpe -v vocab ";
};

TEST_F(Translate, APipelineLearnsPairsByHeart) {
  train(400);
  ok("translate --checkpoint run --input text.de -o text.hyp" + kFlags);
  const double bleu = std::atof(ok("bleu text.hyp text.en -b").c_str());
  EXPECT_GT(bleu, 95) << bytes("text.hyp");
  // From the whole model's weights in one file, by one thread, to stdout: the same bytes.
  ok("translate --checkpoint w.safetensors --input text.de -o other.hyp --threads 1" + kFlags);
  EXPECT_EQ(bytes("other.hyp"), bytes("text.hyp"));
  ok("translate --checkpoint run/checkpoints" + kFlags + "<text.de >piped.hyp 2>notes && true");
  EXPECT_EQ(bytes("piped.hyp"), bytes("text.hyp"));

  const std::string table =
      ok("bleu --run run --input text.de text.en --translate='" + kFlags + " --beam 2'");
  for (const char* step : {"100 ", "200 ", "300 ", "400 "})
    EXPECT_NE(table.find(step), std::string::npos) << table;
  EXPECT_NE(bytes("run/bleu.json").find("\"epochs\": 200"), std::string::npos) << bytes("run/bleu.json");
  ok("report --run run");
  EXPECT_NE(bytes("run/report.html").find("hours of training"), std::string::npos);
}

TEST_F(Translate, LinesStayInStep) {
  train(2);
  write("odd.de", "\nDer Hund\n   \nDer \xE2\x98\x83 Mann, der Baum der Vogel der Hund.\n\nHund");
  const std::string text = ok("translate --checkpoint run --input odd.de -o odd.hyp --max-source 6" + kFlags);
  const std::string hypotheses = bytes("odd.hyp");
  EXPECT_EQ(std::ranges::count(hypotheses, '\n'), 6) << hypotheses;
  EXPECT_EQ(hypotheses[0], '\n');
  EXPECT_NE(text.find("3 empty"), std::string::npos) << text;
  EXPECT_NE(text.find("1 cut"), std::string::npos) << text;
  EXPECT_NE(text.find("(--max-source): line 4"), std::string::npos) << text;
  const std::string best = ok("translate --checkpoint run --input odd.de --n-best 2 --beam 3" + kFlags);
  EXPECT_NE(best.find("1 ||| "), std::string::npos) << best;
  EXPECT_EQ(best.find("0 ||| "), std::string::npos) << best;
}

TEST_F(Translate, WhatIsWrongIsSaidAndNothingIsWritten) {
  train(2);
  write("bad.de", "gut\nnicht \xFF gut\n");
  write("small", "Der\n");
  const auto fails = [&](const std::string& arguments, int code, const std::string& what) {
    const Ran ran = run("translate -o out.hyp " + arguments);
    EXPECT_EQ(ran.code, code) << arguments << "\n" << ran.output;
    EXPECT_NE(ran.output.find(what), std::string::npos) << what << " not in\n" << ran.output;
    for (const auto& entry : fs::directory_iterator(folder_))
      EXPECT_FALSE(entry.path().filename().string().starts_with("out.hyp")) << entry.path();
  };
  fails("--checkpoint run --input bad.de" + kFlags, 3, "bad.de:2: byte 7 (0xff) is no UTF-8");
  fails("--checkpoint run --input none.de" + kFlags, 3, "none.de");
  fails("--checkpoint run --input text.de -v small", 4, "is not the vocabulary that run was trained with");
  fails("--checkpoint w.safetensors --input text.de -v small", 4,
        "small: has 8 tokens, the model of w.safetensors");
  fails("--checkpoint nowhere --input text.de" + kFlags, 4, "nowhere");
  fails("--checkpoint run --input text.de -v none", 3, "none");
  fails("--checkpoint run --input text.de --n-best 6" + kFlags, 2, "--n-best: 6 of a beam of 5");
  write("taken.hyp", "mine");
  EXPECT_EQ(run("translate --checkpoint run --input text.de -o taken.hyp" + kFlags).code, 2);
  EXPECT_EQ(bytes("taken.hyp"), "mine");
  ok("translate --checkpoint run --input bad.de -o out.hyp --invalid-utf8 drop" + kFlags);
  EXPECT_EQ(std::ranges::count(bytes("out.hyp"), '\n'), 2);
}

TEST_F(Translate, JoinersBringTextBackAsItWas) {
  write("odd.en",
        "A dog's t-shirt (red), \"it -- was\" 3.5 %!\n...\n( a )b c(\n\n\xC2\xBFQu\xC3\xA9? "
        "\xE2\x80\x9Ex\xE2\x80\x9C-y\n");
  ok("data text vocab odd.en --joiners -o words");
  ok("data text encode odd.en --joiners -v words -o odd.tokens");
  ok("data text decode odd.tokens -v words -o odd.back");
  EXPECT_EQ(bytes("odd.back"), bytes("odd.en"));
}

}  // namespace
}  // namespace millrace
