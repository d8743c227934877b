// OUT bits from bit LOW up of the product of a number of 19 to 35 bits and one of at most 18: two
// DSPs in a cascade.
module narrow_product #(
    parameter A = 32,
    parameter B = 17,
    parameter LOW = 16,
    parameter OUT = 32
) (
    input wire clk,
    input wire signed [A-1:0] a,
    input wire signed [B-1:0] b,
    output wire signed [OUT-1:0] out  // four cycles later
);
    localparam PART = 17;
    localparam A1 = A - PART;

    wire signed [PART:0] a_low = {1'b0, a[PART-1:0]};
    wire signed [A1-1:0] a_high_1;
    wire signed [B-1:0] b_1;
    wire signed [47:0] sum_0, sum_1;
    wire [PART-1:0] low;
    wire signed [A+B-1:0] whole = {sum_1[A+B-PART-1:0], low};
    wire unused = |sum_1[47:A+B-PART];

    delay #(.WIDTH(A1), .DEPTH(1)) to_1 (.clk(clk), .in(a[A-1:PART]), .out(a_high_1));
    delay #(.WIDTH(B), .DEPTH(1)) b_to_1 (.clk(clk), .in(b), .out(b_1));

    dsp_product #(.A(PART + 1), .B(B)) slice_0 (
        .clk(clk), .a(a_low), .b(b), .addend(48'd0), .result(sum_0));
    dsp_product #(.A(A1), .B(B)) slice_1 (
        .clk(clk), .a(a_high_1), .b(b_1), .addend(sum_0 >>> PART), .result(sum_1));

    delay #(.WIDTH(PART), .DEPTH(1)) low_bits (.clk(clk), .in(sum_0[PART-1:0]), .out(low));

    assign out = OUT'(whole >>> LOW);
endmodule
