// The tree that the parser makes and the interpreter walks.
//
// Thread rules: immutable after parsing.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/template/value.h"

namespace expertplex::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  kLiteral,    // literal
  kName,       // name
  kAttribute,  // operands[0] . name
  kSubscript,  // operands[0] [ operands[1] ]
  kSlice,      // operands[0] [ [1] : [2] : [3] ], each of the three may be null
  kCall,       // operands[0] ( operands[1...], named )
  kFilter,     // operands[0] | name ( operands[1...], named )
  kTest,       // operands[0] is name ( operands[1...] )
  kNot,        // operands[0]
  kNegate,     // operands[0]
  kBinary,     // operands[0] name operands[1]; name: + - * / // % ** ~
  kCompare,    // operands[i] comparisons[i] operands[i + 1], all of them
  kAnd,
  kOr,           // operands[0], operands[1]
  kConditional,  // operands[0] if operands[1] else operands[2], which may be null
  kList,         // operands
  kDict,         // operands: key, value, key, value...
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  int line = 0;
  int height = 1;  // of the tree below
  std::string name;
  Value literal;
  std::vector<ExpressionPtr> operands;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> comparisons;
};

enum class StatementKind {
  kText,      // text
  kOutput,    // expression
  kIf,        // branches; a null condition is the else
  kFor,       // targets in expression if condition: body, else: alternative
  kSet,       // targets[0] = expression, or targets[0].attribute = expression
  kSetBlock,  // targets[0] = what body renders
  kMacro,     // text (the name), parameters, body
  kScope,     // body, unchanged ({% generation %})
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<std::string> targets;
  std::string attribute;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // default value, or null
  std::vector<Statement> body;
  std::vector<Statement> alternative;
  std::vector<std::pair<ExpressionPtr, std::vector<Statement>>> branches;
};

}  // namespace expertplex::chat
