// Where sequences lie, and the rules on lengths, page tables, leftpad and batch_idx: a bad array is refused by name and
// index before anything is written, and slots that no used length reaches may hold anything.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernel_entry.hpp"
#include "problem_text.hpp"
#include "sequence.hpp"

namespace tessera::core {
namespace {

Problem checked(const char* text, uint64_t flags = 0) {
  tessera_problem given;
  tessera_status status;
  EXPECT_EQ(parse_problem(text, &given, nullptr, &status), TESSERA_OK) << status.message;
  given.flags |= flags;
  Problem problem{};
  EXPECT_EQ(validate(given, &problem, &status), TESSERA_OK) << status.message;
  return problem;
}

std::string refusal(const Problem& problem, const tessera_tensors& tensors) {
  tessera_status status{};
  const int code = check_metadata_cpu(problem, tensors, &status);
  EXPECT_EQ(code, status.code);
  return code == TESSERA_OK ? "" : status.message;
}

void expect_refused(const std::string& message, const std::vector<const char*>& fragments) {
  EXPECT_FALSE(message.empty());
  for (const char* fragment : fragments)
    EXPECT_NE(message.find(fragment), std::string::npos) << fragment << " in: " << message;
}

TEST(Metadata, CumulativeLengths) {
  const Problem problem = checked("b3 sq128 d8 packed lens=100:28:0");
  const std::vector<int32_t> good = {0, 100, 100, 128};
  tessera_tensors tensors{};
  tensors.cu_seqlens_q = tensors.cu_seqlens_k = good.data();
  EXPECT_EQ(refusal(problem, tensors), "");
  const struct {
    std::vector<int32_t> cu;
    std::vector<const char*> fragments;
  } cases[] = {{{1, 100, 100, 128}, {"[0] is 1", "expected 0"}},
               {{0, 100, 90, 128}, {"[2] is 90", "100"}},
               {{0, 100, 100, 129}, {"[3] is 129", "128"}},
               {{0, -1, 100, 128}, {"[1] is -1"}}};
  for (const auto& bad : cases) {
    tensors.cu_seqlens_q = bad.cu.data();
    tensors.cu_seqlens_k = good.data();
    expect_refused(refusal(problem, tensors), bad.fragments);
    EXPECT_NE(refusal(problem, tensors).find("cu_seqlens_q"), std::string::npos);
    std::swap(tensors.cu_seqlens_q, tensors.cu_seqlens_k);
    EXPECT_NE(refusal(problem, tensors).find("cu_seqlens_k"), std::string::npos);
  }
  const std::vector<int32_t> shorter = {0, 100, 100, 120};  // rows past the last entry are not touched
  tensors.cu_seqlens_q = tensors.cu_seqlens_k = shorter.data();
  EXPECT_EQ(refusal(problem, tensors), "");
}

TEST(Metadata, MaximaAreChecked) {
  Problem problem = checked("b1 sq100 d8 packed");
  problem.seqlen_q = 50;
  const int32_t cu[] = {0, 100};
  tessera_tensors tensors{};
  tensors.cu_seqlens_q = tensors.cu_seqlens_k = cu;
  expect_refused(refusal(problem, tensors), {"cu_seqlens_q[1] is 100", "maximum, 50"});
}

TEST(Metadata, UsedLengthsAndLeftpad) {
  const Problem problem = checked("b2 sq4 sk9 d8 lens=9:3 leftpad");
  int32_t used_q[] = {4, 0}, used_k[] = {9, 3}, leftpad[] = {0, 3};
  tessera_tensors tensors{};
  tensors.seqused_q = used_q;
  tensors.seqused_k = used_k;
  tensors.leftpad = leftpad;
  EXPECT_EQ(refusal(problem, tensors), "");
  used_q[1] = 5;
  expect_refused(refusal(problem, tensors), {"seqused_q[1] is 5", "4"});
  used_q[1] = -1;
  expect_refused(refusal(problem, tensors), {"seqused_q[1] is -1"});
  used_q[1] = 0;
  used_k[0] = 10;
  expect_refused(refusal(problem, tensors), {"seqused_k[0] is 10", "9"});
  used_k[0] = 9;
  leftpad[1] = 4;
  expect_refused(refusal(problem, tensors), {"leftpad[1] is 4", "3"});
  leftpad[1] = -1;
  expect_refused(refusal(problem, tensors), {"leftpad[1] is -1"});
}

TEST(Metadata, BatchIndex) {
  tessera_problem given;
  ASSERT_EQ(parse_problem("b2 sq4 sk9 d8", &given, nullptr, nullptr), TESSERA_OK);
  given.flags |= TESSERA_FLAG_BATCH_IDX;
  given.batch_kv = 5;
  Problem problem{};
  ASSERT_EQ(validate(given, &problem, nullptr), TESSERA_OK);
  int32_t index[] = {4, 4};
  tessera_tensors tensors{};
  tensors.batch_idx = index;
  EXPECT_EQ(refusal(problem, tensors), "");
  index[1] = 5;
  expect_refused(refusal(problem, tensors), {"batch_idx[1] is 5", "4"});
  index[1] = -1;
  expect_refused(refusal(problem, tensors), {"batch_idx[1] is -1"});
  index[1] = 2;
  EXPECT_EQ(locate_sequence(problem, tensors, 1).kv_batch, 2);
}

TEST(Metadata, OnlyUsedPageSlotsCount) {
  const Problem problem = checked("b3 sq1 sk64 d8 paged=16 lens=17:0:64 leftpad");
  ASSERT_EQ(problem.max_pages, 4);
  const int32_t used[] = {17, 0, 64};
  int32_t used_q[] = {1, 0, 1}, leftpad[] = {0, 0, 33};
  // Slot 0 and 1 of the last sequence lie before its leftpad.
  std::vector<int32_t> table = {2, 0, -1, INT32_MAX, 123456789, -7, -7, -7, -1, 99999, 1, 3};
  tessera_tensors tensors{};
  tensors.seqused_q = used_q;
  tensors.seqused_k = used;
  tensors.page_table = table.data();
  tensors.leftpad = leftpad;
  EXPECT_EQ(refusal(problem, tensors), "");
  leftpad[2] = 31;
  expect_refused(refusal(problem, tensors), {"page_table[2, 1] is 99999", "num_pages - 1"});
  leftpad[2] = 32;
  table[1] = static_cast<int32_t>(problem.num_pages);
  expect_refused(refusal(problem, tensors), {"page_table[0, 1] is"});
  table[1] = -1;
  expect_refused(refusal(problem, tensors), {"page_table[0, 1] is -1"});
}

TEST(Sequence, Dense) {
  const Problem problem = checked("b2 hq3 sq4 sk9 d8 lens=9:3 leftpad");
  const int32_t used_q[] = {4, 2}, used_k[] = {9, 3}, leftpad[] = {0, 1};
  tessera_tensors tensors{};
  tensors.seqused_q = used_q;
  tensors.seqused_k = used_k;
  tensors.leftpad = leftpad;
  const Sequence s = locate_sequence(problem, tensors, 1);
  EXPECT_EQ(s.seqlen_q, 2);
  EXPECT_EQ(s.rows_q, 4);
  EXPECT_EQ(s.seqlen_k, 2);
  EXPECT_EQ(s.rows_k, 8);
  EXPECT_EQ(s.kv_row, 1);
  EXPECT_EQ(s.lse_row, 1 * 3 * 4);
  EXPECT_EQ(s.lse_stride, 4);
  EXPECT_EQ(query_row_offset(s, problem.q, 3), (1 * 4 + 3) * 3 * 8);
  EXPECT_EQ(key_row_offset(problem, s, problem.k, 1), (1 * 9 + 1 + 1) * 3 * 8);
}

TEST(Sequence, Packed) {
  const Problem problem = checked("b3 hq2 sq8 sk9 d8 packed lens=8:0:5");
  const int32_t cu_q[] = {0, 8, 8, 13}, cu_k[] = {0, 8, 8, 13};
  tessera_tensors tensors{};
  tensors.cu_seqlens_q = cu_q;
  tensors.cu_seqlens_k = cu_k;
  EXPECT_EQ(locate_sequence(problem, tensors, 1).seqlen_q, 0);
  EXPECT_EQ(locate_sequence(problem, tensors, 1).seqlen_k, 0);
  const Sequence s = locate_sequence(problem, tensors, 2);
  EXPECT_EQ(s.seqlen_q, 5);
  EXPECT_EQ(s.rows_q, 5);
  EXPECT_EQ(s.rows_k, 5);
  EXPECT_EQ(s.lse_row, 8);
  EXPECT_EQ(s.lse_stride, 13);
  EXPECT_EQ(query_row_offset(s, problem.q, 4), 12 * 2 * 8);
  EXPECT_EQ(key_row_offset(problem, s, problem.k, 4), 12 * 2 * 8);
}

TEST(Sequence, Paged) {
  const Problem problem = checked("b2 sq1 sk40 d8 paged=16 leftpad");
  const int32_t used[] = {40, 20}, leftpad[] = {0, 3}, table[] = {5, 4, 3, 2, 1, -1};
  tessera_tensors tensors{};
  tensors.seqused_k = used;
  tensors.leftpad = leftpad;
  tensors.page_table = table;
  const Sequence s = locate_sequence(problem, tensors, 1);
  EXPECT_EQ(s.seqlen_k, 17);
  EXPECT_EQ(s.pages, table + 3);
  EXPECT_EQ(key_row_offset(problem, s, problem.k, 0), (2 * 16 + 3) * 8);
  EXPECT_EQ(key_row_offset(problem, s, problem.k, 13), (1 * 16 + 0) * 8);
}

}  // namespace
}  // namespace tessera::core
