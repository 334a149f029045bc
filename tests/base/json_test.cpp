#include "runtime/base/json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace {
namespace {

std::string problem_of(const Result<Json>& result) {
  return result ? "accepted" : to_string(result.problems());
}

struct Bad {
  const char* text;
  const char* where;
  const char* what;
};

TEST(Json, RejectsWithPosition) {
  const Bad cases[] = {
      {"{\"a\": 1, \"a\": 2}", "f:1:10", "appears twice"},
      {"{\"a\": 1} x", "f:1:10", "after the end"},
      {"[1, 2", "f:1:6", "ends"},
      {"{\n \"a\": 01}", "f:2:7", "'01'"},
      {"[NaN]", "f:1:2", "'NaN'"},
      {"[1e999]", "f:1:7", "out of range"},
      {"[99999999999999999999]", "f:1:22", "64 bits"},
      {"\"\\ud800\"", "f:1", "surrogate"},
      {"\"a\nb\"", "f:1:3", "control"},
      {"", "f:1:1", "ends"},
      {"{'a': 1}", "f:1:2", "double quotes"},
      {"[1,]", "f:1:4", "expected a value"},
      {"[1,,2]", "f:1:4", "found ','"},
      {"[\"a\"\n \"b\"]", "f:2:2", "expected ']'"},
      {"{\"a\" 1}", "f:1:6", "expected ':'"},
      {"nul", "f:1:1", "'nul'"},
      {"[9223372036854775808]", "f:1:21", "64 bits"},
      {"[1e-999]", "f:1:8", "out of range"},
      {"\"ab", "f:1:4", "ends inside a string"},
      {"\xEF\xBB\xBF[,1]", "f:1:2", "found ','"},
      {"[\"\xff\"]", "f:1:3", "ill-formed UTF-8"},
  };
  for (const Bad& bad : cases) {
    const std::string problem = problem_of(parse_json(bad.text, "f"));
    EXPECT_NE(problem.find(bad.where), std::string::npos) << bad.text << " -> " << problem;
    EXPECT_NE(problem.find(bad.what), std::string::npos) << bad.text << " -> " << problem;
  }
}

TEST(Json, EveryValueKnowsItsPlace) {
  const Result<Json> json =
      parse_json("{\"a\" : [1, -2.5e3 ,true,\n  \"x\\n\"], \"b\":{} ,\n\t\"c\": {\"d\":null}}", "f");
  ASSERT_TRUE(json) << problem_of(json);
  EXPECT_EQ(json->where(), "f:1:1");
  const Json& a = *json->find("a");
  EXPECT_EQ(a.where(), "f:1:8");
  const char* const items[] = {"f:1:9", "f:1:12", "f:1:20", "f:2:3"};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(a.items()[i].where(), items[i]);
  EXPECT_EQ(json->find("b")->where(), "f:2:15");
  EXPECT_EQ(json->find("c")->where(), "f:3:7");
  EXPECT_EQ(json->find("c")->find("d")->where(), "f:3:12");
}

TEST(Json, LimitsDepthAndSize) {
  EXPECT_NE(problem_of(parse_json(std::string(100, '[') + std::string(100, ']'), "f")).find("nested deeper"),
            std::string::npos);
  EXPECT_NE(problem_of(parse_json("[1,2,3]", "f", {.nodes = 2})).find("more than 2"), std::string::npos);
  EXPECT_NE(problem_of(parse_json("[1,2,3]", "f", {.bytes = 3})).find("larger"), std::string::npos);
}

TEST(Json, PrintsWhatItReads) {
  const std::string text = R"({"a":[1,-2,0.5,1e+300,true,false,null,"x\n\"\\é"],"b":{}})";
  EXPECT_EQ(parse_json(text, "f")->dump(), text);
  EXPECT_EQ(Json(1.0).dump(), "1.0");
  EXPECT_EQ(Json(0.1 + 0.2).dump(), "0.30000000000000004");
  EXPECT_EQ(Json(std::nan("")).dump(), "\"NaN\"");
  EXPECT_EQ(Json("\xff").dump(), "\"\xEF\xBF\xBD\"");
}

TEST(Yaml, ClosesTheTrapsOfTheLibrary) {
  const Bad cases[] = {
      {"a: 1\na: 2\n", "f:2:1", "appears twice"},
      {"a: &x [1]\nb: *x\n", "f:1", "anchors"},
      {"<<: {a: 1}\n", "f:1:1", "merge"},
      {"a: 1\n---\nb: 2\n", "f", "several"},
      {"", "f", "empty"},
      {"a: [1, 2\n", "f:", ""},
      {"a: !!binary x\n", "f:1", "tag"},
  };
  for (const Bad& bad : cases) {
    const std::string problem = problem_of(parse_yaml(bad.text, "f"));
    EXPECT_NE(problem.find(bad.where), std::string::npos) << bad.text << " -> " << problem;
    EXPECT_NE(problem.find(bad.what), std::string::npos) << bad.text << " -> " << problem;
  }
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "[";
  EXPECT_FALSE(parse_yaml(deep, "f"));
}

TEST(Yaml, ReadsScalarsAsJsonWould) {
  const Result<Json> json =
      parse_yaml("a: 010\nb: yes\nc: 0x10\nd: -3\ne: 1.5\nf: '7'\ng: ~\nh: true\ni: .nan\n", "f");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->dump(),
            R"({"a":"010","b":"yes","c":"0x10","d":-3,"e":1.5,"f":"7","g":null,"h":true,"i":".nan"})");
}

TEST(ObjectReader, CollectsEveryProblem) {
  const Result<Json> json = parse_yaml("lr: fast\nbatchsize: 3\n", "t.yaml");
  Problems problems;
  ObjectReader in(*json, problems);
  in.number("lr", 0.1);
  in.integer("batch_size", 8);
  in.integer("steps");
  in.finish();
  const std::string text = to_string(problems);
  EXPECT_EQ(problems.size(), 3u) << text;
  EXPECT_NE(text.find("t.yaml:1:5: 'lr' is a string"), std::string::npos) << text;
  EXPECT_NE(text.find("'steps' is missing"), std::string::npos) << text;
  EXPECT_NE(text.find("unknown key 'batchsize'. Hint: did you mean 'batch_size'?"), std::string::npos)
      << text;
}

}  // namespace
}  // namespace millrace
