// The largest of 16 signed values: a comparison a cycle.
module max_tree (
    input wire clk,
    input wire [32*16-1:0] values,
    output wire signed [31:0] out  // four cycles later
);
    // Node i is the larger of nodes 2 i and 2 i + 1; the values are nodes 16 to 31.
    wire [32*32-1:32] nodes;
    assign nodes[32*16+:32*16] = values;
    assign out = nodes[32+:32];

    genvar i;
    generate
        for (i = 1; i < 16; i = i + 1) begin : node
            wire signed [31:0] a = nodes[32*(2*i)+:32], b = nodes[32*(2*i+1)+:32];
            reg signed [31:0] larger;
            always @(posedge clk) larger <= a > b ? a : b;
            assign nodes[32*i+:32] = larger;
        end
    endgenerate
endmodule
