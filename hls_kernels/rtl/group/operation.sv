// The operations of vector_ops (vector_ops.hpp).
/* verilator lint_off UNUSEDPARAM */  // no module asks for all of them
package operation;
    localparam EMBED = 3'd0;
    localparam NORM = 3'd1;
    localparam RESIDUAL = 3'd2;
    localparam HEAD = 3'd3;
    localparam GATE = 3'd4;
    localparam CONTEXT = 3'd5;
endpackage
