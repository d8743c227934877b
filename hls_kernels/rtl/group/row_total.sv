// The sum of a row of words, 46 bits: of a word by a tree, then of the words one by one.
module row_total (
    input wire clk,
    input wire valid,
    input wire first,
    input wire last,
    input wire [32*16-1:0] word,
    output wire out_valid,
    output reg [45:0] out
);
    wire signed [35:0] sum;
    wire valid_sum, first_sum, last_sum;

    sum_tree tree (.clk(clk), .values(word), .out(sum));
    delay #(.WIDTH(3), .DEPTH(latency::SUM_TREE)) beside_tree (
        .clk(clk), .in({valid, first, last}), .out({valid_sum, first_sum, last_sum}));
    always @(posedge clk) if (valid_sum) out <= (first_sum ? 46'd0 : out) + 46'(sum);
    delay #(.WIDTH(1), .DEPTH(1)) for_end (
        .clk(clk), .in(valid_sum & last_sum), .out(out_valid));
endmodule
