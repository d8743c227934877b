// RECIP of NUMERICS.md: 2^15 / (1 + e / 2^15) for e in 0..32768.
module reciprocal (
    input wire clk,
    input wire signed [16:0] e,
    output wire signed [16:0] out
);
    wire signed [16:0] e_1, e_2, e_3, e_4;
    wire signed [16:0] y_1, y_2, y_3, y_4;

    delay #(.WIDTH(17), .DEPTH(latency::DSP)) to_1 (.clk(clk), .in(e), .out(e_1));
    delay #(.WIDTH(17), .DEPTH(latency::DSP)) to_2 (.clk(clk), .in(e_1), .out(e_2));
    delay #(.WIDTH(17), .DEPTH(latency::DSP)) to_3 (.clk(clk), .in(e_2), .out(e_3));
    delay #(.WIDTH(17), .DEPTH(latency::DSP)) to_4 (.clk(clk), .in(e_3), .out(e_4));

    horner #(.X(17), .COEFFICIENT(13959)) step_1 (
        .clk(clk), .y(-17'sd3528), .x(e), .out(y_1));
    horner #(.X(17), .COEFFICIENT(-25486)) step_2 (.clk(clk), .y(y_1), .x(e_1), .out(y_2));
    horner #(.X(17), .COEFFICIENT(31329)) step_3 (.clk(clk), .y(y_2), .x(e_2), .out(y_3));
    horner #(.X(17), .COEFFICIENT(-32655)) step_4 (.clk(clk), .y(y_3), .x(e_3), .out(y_4));
    horner #(.X(17), .COEFFICIENT(32766)) step_5 (.clk(clk), .y(y_4), .x(e_4), .out(out));
endmodule
