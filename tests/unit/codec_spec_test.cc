#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/codec/codec.h"
#include "common/codec/spec.h"

namespace centroid {
namespace {

using ::testing::HasSubstr;

TEST(CodecSpec, PrintsItselfBack) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"f32", "f32"},
      {"f16:feedback=on", "f16:feedback=on"},
      {"bf16:generation=reset,feedback=off", "bf16:generation=reset"},
      {"int8:rounding=nearest", "int8"},
      {"sign", "sign"},
      {"sign:feedback=on,generation=reset", "sign:generation=reset"},
      {"sign:feedback=off", "sign:feedback=off"},
      {"int8:rounding=stochastic", "int8:rounding=stochastic"},
      {"topk:0.01", "topk:0.01"},
      {"topk:.010", "topk:0.01"},
      {"topk:0", "topk:0"},
      {"topk:1.0", "topk:1"},
      {"topk:0.000000001", "topk:0.000000001"},
      {"topk:0.01,values=int8", "topk:0.01,values=int8"},
      {"topk:0.01,scope=global,values=bf16,feedback=on", "topk:0.01,values=bf16,scope=global"},
      {"topk:0.001,clip=2.5,warmup=400,momentum=0.9,nesterov=on,masking=off",
       "topk:0.001,momentum=0.9,nesterov=on,masking=off,clip=2.5,warmup=400"},
      {"topk:0.5,values=int8,rounding=stochastic,feedback=off",
       "topk:0.5,values=int8,rounding=stochastic,feedback=off"},
  };
  for (const auto& [text, normal] : cases) {
    const auto spec = CodecSpec::parse(text);
    ASSERT_TRUE(spec.ok()) << spec.error().message();
    EXPECT_EQ(spec->to_string(), normal);
    EXPECT_EQ(CodecSpec::parse(normal).value(), *spec);
    EXPECT_EQ(make_codec(text).value()->spec(), normal);
  }
}

TEST(CodecSpec, SaysWhatEachFieldMeans) {
  const CodecSpec topk = CodecSpec::parse("topk:0.01").value();
  EXPECT_TRUE(topk.feedback.enabled);  // without it top-k loses accuracy
  EXPECT_TRUE(topk.feedback.carry);
  EXPECT_EQ(topk.ratio.billionths, 10'000'000u);
  EXPECT_EQ(topk.scope, Scope::kTensor);
  EXPECT_FALSE(CodecSpec::parse("int8").value().feedback.enabled);
  EXPECT_EQ(CodecSpec::parse("int8").value().values, ValueType::kInt8);
}

TEST(CodecSpec, ErrorsNameWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "name is empty"},
      {":block=64", "name is empty"},
      {"f31", "name \"f31\" is unknown; expected one of f32, bf16, f16, int8, topk, sign"},
      {"F32", "\"F32\" is unknown"},
      {"f32 ", "\"f32 \" is unknown"},
      {"f32:", "field \"\" is not field=value"},
      {"f32:feedback=on", "field \"feedback\" is unknown, f32 takes none"},
      {"bf16:block", "field \"block\" is not field=value"},
      {"bf16:block=64,x=1", "field \"block\" is unknown, bf16 takes feedback, generation"},
      {"sign:rounding=nearest", "field \"rounding\" is unknown, sign takes feedback, generation"},
      {"topk:0.01,values=sign", "field \"values\" is \"sign\", expected f32, bf16 or int8"},
      {"int8:rounding=up", "field \"rounding\" is \"up\", expected nearest or stochastic"},
      {"topk", "ratio is missing; expected topk:RATIO"},
      {"topk:", "ratio \"\" is not a share"},
      {"topk:1%", "ratio \"1%\" is not a share"},
      {"topk:1.000000001", "ratio"},
      {"topk:-0.1", "ratio \"-0.1\""},
      {"topk:0.0000000001", "at most nine decimals"},
      {"topk:values=int8", "ratio \"values=int8\""},
      {"topk:0.01,values=int4", "field \"values\" is \"int4\", expected f32, bf16 or int8"},
      {"topk:0.01,values=int8,values=int8", "field \"values\" appears twice"},
      {"topk:0.01,", "field \"\" is not field=value"},
      {"topk:0.01,momentum=1", "field \"momentum\" is \"1\", expected at least 0 and less than 1"},
      {"topk:0.01,momentum=nan", "field \"momentum\" is \"nan\""},
      {"topk:0.01,clip=-1", "field \"clip\""},
      {"topk:0.01,warmup=1.5", "field \"warmup\" is \"1.5\", expected a number of rounds"},
      {"topk:0.01,nesterov=on", "field \"nesterov\" needs momentum above 0"},
      {"topk:0.01,masking=off", "field \"masking\" needs momentum above 0"},
      {"topk:0.01,feedback=off,clip=1", "field \"feedback\": momentum, clip and warmup need"},
      {"topk:0.01,rounding=stochastic", "field \"rounding\": stochastic needs values=int8"},
      {"topk:0.01,values=int8,rounding=stochastic",
       "field \"rounding\": stochastic needs feedback"},
      {"int8:feedback=on,rounding=stochastic", "field \"rounding\": stochastic needs feedback"},
  };
  for (const auto& [text, expected] : cases) {
    const auto codec = make_codec(text);
    ASSERT_FALSE(codec.ok()) << text;
    EXPECT_EQ(codec.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(codec.error().message(), HasSubstr(expected));
  }
}

}  // namespace
}  // namespace centroid
