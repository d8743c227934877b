// EXP of NUMERICS.md: 2^15 * 2^(-f / 2^16) for f of 16 bits.
module exponential (
    input wire clk,
    input wire [15:0] f,
    output wire signed [16:0] out
);
    wire signed [15:0] g_0 = {1'b0, f[15:1]};
    wire signed [15:0] g_1, g_2, g_3;
    wire signed [16:0] y_1, y_2, y_3;
    wire unused = f[0];

    delay #(.WIDTH(16), .DEPTH(latency::DSP)) to_1 (.clk(clk), .in(g_0), .out(g_1));
    delay #(.WIDTH(16), .DEPTH(latency::DSP)) to_2 (.clk(clk), .in(g_1), .out(g_2));
    delay #(.WIDTH(16), .DEPTH(latency::DSP)) to_3 (.clk(clk), .in(g_2), .out(g_3));

    horner #(.COEFFICIENT(-1744)) step_1 (.clk(clk), .y(17'sd224), .x(g_0), .out(y_1));
    horner #(.COEFFICIENT(7846)) step_2 (.clk(clk), .y(y_1), .x(g_1), .out(y_2));
    horner #(.COEFFICIENT(-22708)) step_3 (.clk(clk), .y(y_2), .x(g_2), .out(y_3));
    horner #(.COEFFICIENT(32768)) step_4 (.clk(clk), .y(y_3), .x(g_3), .out(out));
endmodule
