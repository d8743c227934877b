// OUT bits from bit LOW up of the product of two numbers of 19 to 35 bits: a cascade of four DSPs,
// whose sums move down by 17 bits where the next slice's product weighs as much more.
module product #(
    parameter A = 32,
    parameter B = 32,
    parameter LOW = 32,
    parameter OUT = 32
) (
    input wire clk,
    input wire signed [A-1:0] a,
    input wire signed [B-1:0] b,
    output wire signed [OUT-1:0] out  // six cycles later
);
    localparam PART = 17;
    localparam A1 = A - PART, B1 = B - PART;

    // Each slice's operands come one cycle after those of the slice before.
    wire signed [PART:0] a_low_0 = {1'b0, a[PART-1:0]}, b_low_0 = {1'b0, b[PART-1:0]};
    wire signed [A1-1:0] a_high_1, a_high_3;
    wire signed [B1-1:0] b_high_2, b_high_3;
    wire signed [PART:0] b_low_1, a_low_2;
    wire signed [47:0] sum_0, sum_1, sum_2, sum_3;
    wire [PART-1:0] low, middle;
    wire signed [A+B-1:0] whole = {sum_3[A+B-2*PART-1:0], middle, low};
    wire unused = |sum_3[47:A+B-2*PART];

    delay #(.WIDTH(A1), .DEPTH(1)) to_1 (.clk(clk), .in(a[A-1:PART]), .out(a_high_1));
    delay #(.WIDTH(PART + 1), .DEPTH(1)) low_to_1 (.clk(clk), .in(b_low_0), .out(b_low_1));
    delay #(.WIDTH(PART + 1), .DEPTH(2)) low_to_2 (.clk(clk), .in(a_low_0), .out(a_low_2));
    delay #(.WIDTH(B1), .DEPTH(2)) to_2 (.clk(clk), .in(b[B-1:PART]), .out(b_high_2));
    delay #(.WIDTH(A1), .DEPTH(2)) to_3 (.clk(clk), .in(a_high_1), .out(a_high_3));
    delay #(.WIDTH(B1), .DEPTH(1)) high_to_3 (.clk(clk), .in(b_high_2), .out(b_high_3));

    dsp_product #(.A(PART + 1), .B(PART + 1)) slice_0 (
        .clk(clk), .a(a_low_0), .b(b_low_0), .addend(48'd0), .result(sum_0));
    dsp_product #(.A(A1), .B(PART + 1)) slice_1 (
        .clk(clk), .a(a_high_1), .b(b_low_1), .addend(sum_0 >>> PART), .result(sum_1));
    dsp_product #(.A(PART + 1), .B(B1)) slice_2 (
        .clk(clk), .a(a_low_2), .b(b_high_2), .addend(sum_1), .result(sum_2));
    dsp_product #(.A(A1), .B(B1)) slice_3 (
        .clk(clk), .a(a_high_3), .b(b_high_3), .addend(sum_2 >>> PART), .result(sum_3));

    delay #(.WIDTH(PART), .DEPTH(3)) low_bits (.clk(clk), .in(sum_0[PART-1:0]), .out(low));
    delay #(.WIDTH(PART), .DEPTH(1)) middle_bits (.clk(clk), .in(sum_2[PART-1:0]), .out(middle));

    assign out = OUT'(whole >>> LOW);
endmodule
